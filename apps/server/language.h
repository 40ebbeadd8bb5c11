// OpenAI's endpoints for a language model.
#pragma once

#include <string>
#include <vector>

#include "http.h"
#include "speech.h"

namespace speech::server {

struct AccessSettings {
  std::string api_key;                    // empty: none is asked for
  std::vector<std::string> cors_origins;  // origins that browsers may call from; "*": any
  bool loopback = true;                   // listening on this machine only: check the Host header
};

// Answers requests that must not go further (wrong Host, foreign Origin, no key, a preflight), and
// adds CORS headers to the others. True when the request was answered.
bool guard(const AccessSettings& settings, const Request& request, Response& response);

// {"error":{"message","type","param","code"}}
std::string error_json(const std::string& message, const char* type, const std::string& param,
                       const char* code);

// POST /v1/chat/completions, POST /v1/completions, GET /v1/models, /v1/models/NAME, /health,
// /metrics.
class LanguageEndpoints {
 public:
  // `completions` must outlive it.
  LanguageEndpoints(speech_completions* completions, std::string model_name);
  void handle(const Request& request, Response& response) const;

 private:
  void complete(speech_completion_kind kind, const Request& request, Response& response) const;
  std::string metrics() const;

  speech_completions* completions_;
  std::string name_;
  long long started_;
};

}  // namespace speech::server

#include "language.h"

#include <ctime>
#include <nlohmann/json.hpp>

#include "base/handle.h"

namespace speech::server {
namespace {

using Json = nlohmann::ordered_json;

using Text = Handle<speech_text, speech_text_free>;

constexpr const char* kJson = "application/json";

// The host of "name:port" or "[v6]:port".
std::string host_name(const std::string& host) {
  if (host.starts_with('[')) return host.substr(0, host.find(']') + 1);
  return host.substr(0, host.rfind(':'));
}

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "127.0.0.1" || host == "[::1]" || host == "::1";
}

// Compares without telling by its time where the texts differ.
bool same_secret(const std::string& a, const std::string& b) {
  unsigned char difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i) {
    difference = static_cast<unsigned char>(difference | (a[i] ^ b[b.empty() ? 0 : i % b.size()]));
  }
  return difference == 0;
}

struct Failure {
  int status;
  const char* type;
  const char* code;
};

Failure http_status(speech_status status) {
  switch (status) {
    case SPEECH_INVALID_ARGUMENT:
      return {400, "invalid_request_error", "invalid_argument"};
    case SPEECH_OUT_OF_RANGE:
      return {400, "invalid_request_error", "out_of_range"};
    case SPEECH_UNSUPPORTED:
      return {400, "invalid_request_error", "unsupported"};
    case SPEECH_BUSY:
      return {429, "rate_limit_error", "busy"};
    case SPEECH_OUT_OF_MEMORY:
      return {503, "server_error", "out_of_memory"};
    case SPEECH_CANCELLED:  // who left does not read it; who stays is told when the server stops
      return {503, "server_error", "cancelled"};
    default:
      return {500, "server_error", "internal"};
  }
}

}  // namespace

std::string error_json(const std::string& message, const char* type, const std::string& param,
                       const char* code) {
  Json error{{"message", message},
             {"type", type},
             {"param", param.empty() ? Json() : Json(param)},
             {"code", code ? Json(code) : Json()}};
  return Json{{"error", error}}.dump(-1, ' ', false, Json::error_handler_t::replace);
}

bool guard(const AccessSettings& settings, const Request& request, Response& response) {
  auto refuse = [&](int status, const std::string& message, const char* code) {
    response.send(status, kJson, error_json(message, "invalid_request_error", "", code));
    return true;
  };
  // A page on the web can make a browser call a name that resolves to this machine.
  std::string host = request.header("Host");
  if (settings.loopback && !is_loopback(host_name(host)) && !is_loopback(host)) {
    return refuse(403, "host \"" + host + "\" is not this machine", "host");
  }
  std::string origin = request.header("Origin");
  if (!origin.empty()) {
    size_t scheme = origin.find("://");
    std::string from = scheme == std::string::npos ? origin : origin.substr(scheme + 3);
    bool allowed = from == host;
    for (const std::string& o : settings.cors_origins) allowed = allowed || o == "*" || o == origin;
    if (!allowed) {
      return refuse(403, "origin " + origin + " is not allowed; see --cors-origin", "origin");
    }
    response.add_header("Access-Control-Allow-Origin", origin);
    response.add_header("Vary", "Origin");
    if (request.method == "OPTIONS") {
      response.add_header("Access-Control-Allow-Methods", "GET, POST, OPTIONS");
      response.add_header("Access-Control-Allow-Headers", "Authorization, Content-Type");
      response.add_header("Access-Control-Max-Age", "600");
      response.send(204, "", "");
      return true;
    }
  }
  if (!settings.api_key.empty() && request.path != "/health" &&
      !same_secret(request.header("Authorization"), "Bearer " + settings.api_key)) {
    return refuse(401, "the API key is missing or wrong", "invalid_api_key");
  }
  return false;
}

LanguageEndpoints::LanguageEndpoints(speech_completions* completions, std::string model_name)
    : completions_(completions), name_(std::move(model_name)), started_(std::time(nullptr)) {}

void LanguageEndpoints::handle(const Request& request, Response& response) const {
  const std::string& path = request.path;
  Json model{{"id", name_}, {"object", "model"}, {"created", started_}, {"owned_by", "local"}};
  bool get = request.method == "GET" || request.method == "HEAD";
  bool post = request.method == "POST";
  if (path == "/v1/chat/completions" || path == "/v1/completions") {
    if (post) {
      return complete(path == "/v1/completions" ? SPEECH_COMPLETION_TEXT : SPEECH_COMPLETION_CHAT,
                      request, response);
    }
  } else if (path == "/health") {
    if (get) return response.send(200, kJson, R"({"status":"ok"})");
  } else if (path == "/v1/models") {
    if (get) {
      Json list{{"object", "list"}, {"data", Json::array({model})}};
      return response.send(200, kJson, list.dump());
    }
  } else if (path == "/v1/models/" + name_) {
    if (get) return response.send(200, kJson, model.dump());
  } else if (path == "/metrics") {
    if (get) return response.send(200, "text/plain; version=0.0.4", metrics());
  } else {
    return response.send(
        404, kJson,
        error_json("there is no " + path + " here", "invalid_request_error", "", "not_found"));
  }
  response.send(405, kJson,
                error_json(path + " does not take " + request.method, "invalid_request_error", "",
                           "method_not_allowed"));
}

void LanguageEndpoints::complete(speech_completion_kind kind, const Request& request,
                                 Response& response) const {
  if (request.body.find('\0') != std::string::npos) {  // the C API would see its first part only
    return response.send(400, kJson,
                         error_json("the request is not valid JSON", "invalid_request_error", "",
                                    "invalid_argument"));
  }
  struct Stream {
    Response& response;
    bool begun = false;
  } stream{response};
  auto chunk = [](const char* json, void* user) -> int {
    auto& s = *static_cast<Stream*>(user);
    if (!s.begun) s.response.begin_events();
    s.begun = true;
    return s.response.write_event(json) ? 0 : 1;
  };
  auto gone = [](void* user) -> int { return static_cast<Stream*>(user)->response.client_gone(); };
  speech_text* raw = nullptr;
  const char* body = request.body.empty() ? " " : request.body.c_str();
  speech_status status = speech_complete(completions_, kind, body, chunk, gone, &stream, &raw);
  Text answer(raw);
  if (status == SPEECH_OK) {
    if (stream.begun) {
      response.write_event("[DONE]");
    } else {
      response.send(200, kJson, speech_text_get(answer.get()));
    }
    return;
  }
  const char* option = speech_last_error_option();
  Failure f = http_status(status);
  std::string error = error_json(speech_last_error(), f.type, option ? option : "", f.code);
  if (stream.begun) {
    response.write_event(error);  // the status line is gone; the stream ends without [DONE]
  } else {
    if (f.status == 429) response.add_header("Retry-After", "1");
    response.send(f.status, kJson, error);
  }
}

std::string LanguageEndpoints::metrics() const {
  speech_text* raw = nullptr;
  if (speech_completions_counts(completions_, &raw) != SPEECH_OK) return {};
  Text text(raw);
  Json counts = Json::parse(speech_text_get(text.get()));
  std::string out;
  auto add = [&](const char* name, const char* type, const char* help, const char* key) {
    out += std::string("# HELP ") + name + " " + help + "\n# TYPE " + name + " " + type + "\n" +
           name + " " + counts[key].dump() + "\n";
  };
  add("speech_requests_total", "counter", "Requests taken.", "requests");
  add("speech_requests_failed_total", "counter", "Requests that ended in an error.", "failed");
  add("speech_requests_cancelled_total", "counter", "Requests whose client left.", "cancelled");
  add("speech_prompt_tokens_total", "counter", "Tokens of prompts.", "prompt_tokens");
  add("speech_cached_tokens_total", "counter", "Tokens of prompts that a cache held.",
      "cached_tokens");
  add("speech_generated_tokens_total", "counter", "Tokens generated.", "generated_tokens");
  add("speech_prompt_seconds_total", "counter", "Time to first tokens.", "prompt_seconds");
  add("speech_generation_seconds_total", "counter", "Time after first tokens.",
      "generation_seconds");
  add("speech_grammars_compiled_total", "counter", "Schemas and grammars compiled.",
      "grammars_compiled");
  add("speech_requests_running", "gauge", "Requests in the batch.", "running");
  add("speech_requests_waiting", "gauge", "Requests in the queue.", "waiting");
  return out;
}

}  // namespace speech::server

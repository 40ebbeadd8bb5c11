// speech serve: OpenAI's API over HTTP.
#include <pthread.h>
#include <signal.h>

#include <cstdlib>
#include <mutex>
#include <thread>

#include "../server/language.h"
#include "language.h"

namespace speech::cli {
namespace {

// SIGINT and SIGTERM, taken by a thread of their own, which may do what a signal handler may not.
// They stop the server once there is one, and end the program before. To be made before any other
// thread: these inherit that the signals are not for them.
class StopSignals {
 public:
  StopSignals() {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGINT);
    sigaddset(&signals_, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
    thread_ = std::thread([this] { wait(); });
  }
  ~StopSignals() {
    {
      std::lock_guard lock(mutex_);
      done_ = true;
    }
    pthread_kill(thread_.native_handle(), SIGTERM);
    thread_.join();
  }
  // nullptr: no longer.
  void stop(server::HttpServer* server) {
    std::lock_guard lock(mutex_);
    server_ = server;
  }

 private:
  void wait() {
    while (true) {
      int signal = 0;
      sigwait(&signals_, &signal);
      std::lock_guard lock(mutex_);
      if (done_) return;
      if (!server_) std::_Exit(128 + signal);
      note("ending; requests under way are answered first, a second Ctrl-C cuts them off");
      server_->stop();
    }
  }

  sigset_t signals_;
  std::mutex mutex_;
  bool done_ = false;
  server::HttpServer* server_ = nullptr;
  std::thread thread_;
};

class Serve final : public Command {
 public:
  void add_flags(CLI::App& app) override {
    app.add_option("MODEL", model_, "A Hugging Face or MLX folder, or a GGUF file")
        ->required()
        ->type_name("MODEL");
    app.add_option("--host", server_.host, "The address to listen on")->capture_default_str();
    app.add_option("--port", server_.port, "The port; 0: any free one")->capture_default_str();
    app.add_option("--api-key", access_.api_key,
                   "Ask clients for this key (also: SPEECH_API_KEY in the environment)");
    app.add_option("--cors-origin", access_.cors_origins,
                   "An origin whose pages may call, or * (may be repeated)");
    app.add_option("--sequences", sequences_, "Requests that are computed in one batch")
        ->check(CLI::Range(1, 256))
        ->capture_default_str();
    app.add_option("--queue", queue_, "While so many prompts wait, requests get 429")
        ->check(at_least(1))
        ->capture_default_str();
    app.add_option("--name", name_, "The model's name in answers (default: its own)");
    completion_.add(app);
    device_.add(app);
    device_.add_weights(app);
    device_.add_memory(app);
  }

  int run() override {
    if (const char* key = std::getenv("SPEECH_API_KEY"); key && access_.api_key.empty()) {
      access_.api_key = key;
    }
    access_.loopback =
        server_.host == "localhost" || server_.host == "::1" || server_.host.starts_with("127.");
    ::signal(SIGPIPE, SIG_IGN);  // a client that leaves is an error of one write
    StopSignals signals;
    ModelHandle model = device_.load(model_);
    const speech_model_info* info = nullptr;
    check(speech_model_get_info(model.get(), &info));
    if (name_.empty()) name_ = speech_model_info_name(info);
    CompletionsHandle completions = completion_.make(model.get(), {name_, sequences_, queue_});
    server::LanguageEndpoints endpoints(completions.get(), name_);
    server::HttpServer http(server_,
                            [&](const server::Request& request, server::Response& response) {
                              if (!server::guard(access_, request, response))
                                endpoints.handle(request, response);
                            });
    note("{} serves http://{}:{}/v1 (Ctrl-C ends)", name_, server_.host, http.port());
    signals.stop(&http);
    if (!http.run()) {  // its threads use the model: no way out but at once
      note("speech: a request under way did not end in time");
      std::_Exit(exit_failure);
    }
    signals.stop(nullptr);
    return exit_done;
  }

 private:
  std::string model_, name_;
  server::ServerSettings server_;
  server::AccessSettings access_;
  int sequences_ = 8, queue_ = 64;
  CompletionFlags completion_;
  DeviceFlags device_;
};

}  // namespace

std::unique_ptr<Command> make_serve() {
  return std::make_unique<Serve>();
}

}  // namespace speech::cli

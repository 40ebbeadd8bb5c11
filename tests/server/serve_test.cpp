// speech serve as a process: where it listens, how it ends.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "http_client.h"
#include "test_data.h"

namespace speech {
namespace {

using testing::HttpClient;
using Json = nlohmann::json;

class ServeProcess {
 public:
  explicit ServeProcess(std::vector<std::string> flags = {}) {
    std::vector<std::string> arguments{
        SPEECH_PROGRAM, "serve", testing::data_path("qwen3/dense-tied/checkpoint"), "--port", "0",
        "--threads",    "2"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    std::vector<char*> pointers;
    for (std::string& a : arguments) pointers.push_back(a.data());
    pointers.push_back(nullptr);
    int ends[2];
    if (::pipe(ends) != 0) throw std::runtime_error("no pipe");
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(ends[1], STDERR_FILENO);
      ::close(ends[0]);
      ::close(ends[1]);
      ::execv(pointers[0], pointers.data());
      ::_exit(127);
    }
    ::close(ends[1]);
    errors_ = ends[0];
    const std::string mark = "http://127.0.0.1:";
    while (output_.find(mark) == std::string::npos || !output_.ends_with("\n")) {
      if (!fill()) throw std::runtime_error("speech serve ended: " + output_);
    }
    port_ = std::stoi(output_.substr(output_.find(mark) + mark.size()));
  }
  ~ServeProcess() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    ::close(errors_);
  }

  int port() const { return port_; }
  void signal(int number) const { ::kill(pid_, number); }
  // Waits for the end: the exit code, or 1000 and the signal that killed it.
  int wait() {
    while (fill()) {
    }
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }

 private:
  bool fill() {
    char bytes[512];
    ssize_t n = ::read(errors_, bytes, sizeof bytes);
    if (n > 0) output_.append(bytes, static_cast<size_t>(n));
    return n > 0;
  }

  pid_t pid_ = -1;
  int errors_ = -1, port_ = 0;
  std::string output_;
};

std::string endless() {
  return Json{{"prompt", "a"}, {"max_tokens", 30000}, {"ignore_eos", true}, {"stream", true}}
      .dump();
}

TEST(Serve, ASignalEndsItWithTheRequestUnderWayAnswered) {
  for (int number : {SIGTERM, SIGINT}) {
    ServeProcess server;
    HttpClient client(server.port()), idle(server.port());
    Json request{{"prompt", "a"}, {"max_tokens", 600}, {"ignore_eos", true}, {"stream", true}};
    client.send_request("POST", "/v1/completions", request.dump());
    std::string begun = client.read_some();
    EXPECT_TRUE(begun.starts_with("HTTP/1.1 200")) << begun;
    server.signal(number);
    std::string rest;
    for (std::string more; !(more = client.read_some()).empty();) rest += more;
    EXPECT_NE(rest.find("\"finish_reason\":\"length\""), std::string::npos) << rest.size();
    EXPECT_NE(rest.find("data: [DONE]"), std::string::npos);
    EXPECT_EQ(server.wait(), 0);
  }
}

TEST(Serve, ASecondSignalCutsOff) {
  ServeProcess server;
  HttpClient client(server.port());
  client.send_request("POST", "/v1/completions", endless());
  EXPECT_TRUE(client.read_some().starts_with("HTTP/1.1 200"));
  server.signal(SIGTERM);
  // A second one while the first is pending would be lost: wait until it was taken.
  while (true) {
    try {
      HttpClient another(server.port());
      ::usleep(1000);
    } catch (const std::runtime_error&) {
      break;
    }
  }
  server.signal(SIGTERM);
  std::string rest;
  for (std::string more; !(more = client.read_some()).empty();) rest += more;
  EXPECT_EQ(rest.find("data: [DONE]"), std::string::npos);
  EXPECT_EQ(server.wait(), 0);
}

TEST(Serve, FlagsReachTheServer) {
  ServeProcess server({"--api-key", "k", "--name", "other", "--cors-origin", "https://a.example",
                       "--quantize", "int8", "--kv-cache", "f16"});
  EXPECT_EQ(HttpClient(server.port()).request("GET", "/v1/models").status, 401);
  testing::Reply reply =
      HttpClient(server.port())
          .request("GET", "/v1/models/other", "",
                   {{"Authorization", "Bearer k"}, {"Origin", "https://a.example"}});
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(Json::parse(reply.body)["id"], "other");
  reply = HttpClient(server.port())
              .request("POST", "/v1/completions", R"({"prompt":"a","max_tokens":1})",
                       {{"Authorization", "Bearer k"}});
  EXPECT_EQ(Json::parse(reply.body)["model"], "other");
  server.signal(SIGTERM);
  EXPECT_EQ(server.wait(), 0);
}

}  // namespace
}  // namespace speech

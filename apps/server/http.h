// A small HTTP/1.1 server on Boost.Beast: a thread a connection, bounded in number, body size and
// time.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace speech::server {

struct Request {
  std::string method, path, query;  // path without the query
  std::string body;
  std::function<std::string(std::string_view name)> header;  // "" when absent; any letter case
};

// The answer to one request: either send(), or begin_events() and any number of write_event().
class Response {
 public:
  virtual ~Response() = default;
  virtual void add_header(std::string name, std::string value) = 0;
  virtual void send(int status, std::string_view content_type, std::string_view body) = 0;
  // Server-sent events: write_event("{...}") sends "data: {...}\n\n". False once the client is
  // gone.
  virtual void begin_events() = 0;
  virtual bool write_event(std::string_view data) = 0;
  // Whether the client has closed the connection; cheap enough to ask a few times a second.
  virtual bool client_gone() = 0;
};

using Handler = std::function<void(const Request&, Response&)>;

struct ServerSettings {
  std::string host = "127.0.0.1";
  int port = 8080;                           // 0: any free one
  uint64_t body_limit = uint64_t{64} << 20;  // bytes; 413 past it
  int connections = 64;                      // at once; 503 past it
  // For a request to arrive whole; for a client to take more of its answer.
  std::chrono::milliseconds idle_timeout{60'000};
  std::chrono::milliseconds grace{10'000};  // for requests under way when the server stops
};

class HttpServer {
 public:
  // Binds and listens: Error(io) when the address is taken or not ours.
  HttpServer(ServerSettings settings, Handler handler);
  ~HttpServer();

  int port() const;
  // Serves until stop(), and then until all connections have ended: true. False: the handler of one
  // did not return within another grace after its client was cut off. It still runs, and what it
  // uses must stay.
  bool run();
  // No connection is taken any more and idle ones are closed; requests under way are answered, but
  // those that take longer than the grace, or a second stop(), are cut off: their clients count as
  // gone. From any thread, not from a signal handler.
  void stop();

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;  // connections whose handler does not end keep it
};

}  // namespace speech::server

#include "http.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/version.hpp>
#include <condition_variable>
#include <list>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "base/log.h"

namespace speech::server {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using tcp = asio::ip::tcp;

// Waits until the socket can be read; false on timeout.
bool wait_readable(int fd, int milliseconds) {
  pollfd p{fd, POLLIN, 0};
  return ::poll(&p, 1, milliseconds) > 0;
}

void set_timeout(int fd, int option, std::chrono::seconds seconds) {
  timeval t{static_cast<time_t>(seconds.count()), 0};
  ::setsockopt(fd, SOL_SOCKET, option, &t, sizeof t);
}

// Reads with poll() in front, so that a client that stops sending cannot hold a thread for ever:
// Boost's blocking calls retry when a socket timeout strikes.
class TimedStream {
 public:
  TimedStream(tcp::socket& socket, std::chrono::seconds timeout)
      : socket_(socket), deadline_(std::chrono::steady_clock::now() + timeout) {}

  template <typename Buffers>
  size_t read_some(const Buffers& buffers, beast::error_code& error) {
    auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
                    deadline_ - std::chrono::steady_clock::now())
                    .count();
    if (left <= 0 || !wait_readable(socket_.native_handle(), static_cast<int>(left))) {
      error = beast::error::timeout;
      return 0;
    }
    return socket_.read_some(buffers, error);
  }
  template <typename Buffers>
  size_t read_some(const Buffers& buffers) {
    beast::error_code error;
    size_t n = read_some(buffers, error);
    if (error) throw beast::system_error(error);
    return n;
  }

 private:
  tcp::socket& socket_;
  std::chrono::steady_clock::time_point deadline_;
};

class Answer final : public Response {
 public:
  Answer(tcp::socket& socket, unsigned version, bool keep_alive, bool head)
      : socket_(socket), version_(version), keep_alive_(keep_alive), head_(head) {}

  bool sent() const { return sent_; }
  bool keep_alive() const { return keep_alive_ && !failed_; }

  void add_header(std::string name, std::string value) override {
    headers_.emplace_back(std::move(name), std::move(value));
  }

  void send(int status, std::string_view content_type, std::string_view body) override {
    if (sent_) return;
    sent_ = true;
    http::response<http::string_body> r{static_cast<http::status>(status), version_};
    fill(r, content_type);
    r.keep_alive(keep_alive_);
    r.content_length(body.size());
    if (!head_) r.body() = std::string(body);
    beast::error_code error;
    if (head_) {
      http::response_serializer<http::string_body> serializer(r);
      http::write_header(socket_, serializer, error);
    } else {
      http::write(socket_, r, error);
    }
    failed_ = failed_ || error;
  }

  void begin_events() override {
    if (sent_) return;
    sent_ = true;
    http::response<http::empty_body> r{http::status::ok, version_};
    fill(r, "text/event-stream");
    r.set(http::field::cache_control, "no-cache");
    chunked_ = version_ >= 11;
    r.keep_alive(keep_alive_ && chunked_);
    keep_alive_ = keep_alive_ && chunked_;
    if (chunked_) r.chunked(true);
    http::response_serializer<http::empty_body> serializer(r);
    beast::error_code error;
    http::write_header(socket_, serializer, error);
    failed_ = failed_ || error;
  }

  bool write_event(std::string_view data) override {
    std::string text = "data: " + std::string(data) + "\n\n";
    return write_raw(text);
  }

  void end() {
    if (!chunked_ || failed_) return;
    beast::error_code error;
    asio::write(socket_, http::make_chunk_last(), error);
    failed_ = failed_ || error;
  }

  bool client_gone() override {
    if (failed_) return true;
    char byte;
    ssize_t n = ::recv(socket_.native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
      failed_ = true;
    }
    return failed_;
  }

 private:
  template <typename R>
  void fill(R& r, std::string_view content_type) {
    r.set(http::field::server, "speech/" SPEECH_VERSION);
    if (!content_type.empty()) {
      r.set(http::field::content_type, {content_type.data(), content_type.size()});
    }
    for (auto& [name, value] : headers_) r.set(name, value);
  }

  bool write_raw(std::string_view text) {
    if (failed_) return false;
    beast::error_code error;
    asio::const_buffer buffer(text.data(), text.size());
    if (chunked_) {
      asio::write(socket_, http::make_chunk(buffer), error);
    } else {
      asio::write(socket_, buffer, error);
    }
    failed_ = static_cast<bool>(error);
    return !failed_;
  }

  tcp::socket& socket_;
  unsigned version_;
  bool keep_alive_, head_;
  bool sent_ = false, chunked_ = false, failed_ = false;
  std::vector<std::pair<std::string, std::string>> headers_;
};

}  // namespace

struct HttpServer::Impl {
  ServerSettings settings;
  Handler handler;
  asio::io_context context;
  tcp::acceptor acceptor{context};
  std::atomic<bool> stopping{false};
  std::mutex mutex;
  std::condition_variable ended;
  int open = 0;
  std::list<int> sockets;  // of open connections, to wake them on stop()

  void serve(tcp::socket socket);
  bool serve_one(tcp::socket& socket, beast::flat_buffer& buffer);
};

HttpServer::HttpServer(ServerSettings settings, Handler handler) : impl_(new Impl) {
  impl_->settings = std::move(settings);
  impl_->handler = std::move(handler);
  const ServerSettings& s = impl_->settings;
  beast::error_code error;
  tcp::resolver resolver(impl_->context);
  auto found = resolver.resolve(s.host, std::to_string(s.port), tcp::resolver::passive, error);
  if (error || found.empty()) {
    fail_option(Status::io, "host", "cannot listen on {}: {}", s.host, error.message());
  }
  tcp::endpoint endpoint = found.begin()->endpoint();
  impl_->acceptor.open(endpoint.protocol(), error);
  if (!error) impl_->acceptor.set_option(asio::socket_base::reuse_address(true), error);
  if (!error) impl_->acceptor.bind(endpoint, error);
  if (!error) impl_->acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error) {
    fail_option(Status::io, "port", "cannot listen on {}:{}: {}", s.host, s.port, error.message());
  }
}

HttpServer::~HttpServer() = default;

int HttpServer::port() const {
  return impl_->acceptor.local_endpoint().port();
}

void HttpServer::run() {
  Impl& s = *impl_;
  while (!s.stopping) {
    // A short wait rather than a blocking accept, so that stop() needs no tricks.
    if (!wait_readable(s.acceptor.native_handle(), 200)) continue;
    beast::error_code error;
    tcp::socket socket(s.context);
    s.acceptor.accept(socket, error);
    if (error) continue;
    std::unique_lock lock(s.mutex);
    if (s.open >= s.settings.connections) {
      lock.unlock();
      Answer(socket, 11, false, false)
          .send(503, "application/json",
                R"({"error":{"message":"too many connections","type":"server_error",)"
                R"("param":null,"code":"busy"}})");
      continue;
    }
    ++s.open;
    lock.unlock();
    try {
      std::thread([&s, socket = std::move(socket)]() mutable {
        s.serve(std::move(socket));
      }).detach();
    } catch (const std::system_error&) {
      lock.lock();
      --s.open;
    }
  }
  std::unique_lock lock(s.mutex);
  s.ended.wait(lock, [&] { return s.open == 0; });
}

void HttpServer::stop() {
  impl_->stopping = true;
  std::lock_guard lock(impl_->mutex);
  for (int fd : impl_->sockets) ::shutdown(fd, SHUT_RD);  // idle readers wake; answers still go out
}

void HttpServer::Impl::serve(tcp::socket socket) {
  std::list<int>::iterator place;
  {
    std::lock_guard lock(mutex);
    place = sockets.insert(sockets.end(), socket.native_handle());
  }
  try {
    beast::error_code error;
    socket.set_option(tcp::no_delay(true), error);
    set_timeout(socket.native_handle(), SO_SNDTIMEO, settings.idle_timeout);
    beast::flat_buffer buffer;
    while (!stopping && serve_one(socket, buffer)) {
    }
    socket.shutdown(tcp::socket::shutdown_send, error);
  } catch (const std::exception& e) {
    log_warn("connection: {}", e.what());
  }
  std::lock_guard lock(mutex);
  sockets.erase(place);
  beast::error_code error;
  socket.close(error);
  if (--open == 0) ended.notify_all();
}

bool HttpServer::Impl::serve_one(tcp::socket& socket, beast::flat_buffer& buffer) {
  TimedStream stream(socket, settings.idle_timeout);
  http::request_parser<http::string_body> parser;
  parser.body_limit(settings.body_limit);
  parser.header_limit(32 << 10);
  beast::error_code error;
  http::read_header(stream, buffer, parser, error);
  if (!error && parser.get()[http::field::expect] == "100-continue") {
    http::response<http::empty_body> go_on{http::status::continue_, parser.get().version()};
    http::write(socket, go_on, error);
  }
  if (!error) http::read(stream, buffer, parser, error);
  const auto& message = parser.get();
  if (error) {
    int status = error == http::error::body_limit     ? 413
                 : error == http::error::header_limit ? 431
                 : error == beast::error::timeout     ? 408
                                                      : 400;
    // Nothing is owed to a client that closed or never spoke.
    if (error == http::error::end_of_stream || (status == 408 && buffer.size() == 0) ||
        error.category() == asio::error::get_system_category() ||
        error.category() == asio::error::get_misc_category()) {
      return false;
    }
    Answer(socket, 11, false, false)
        .send(status, "application/json",
              R"({"error":{"message":")" + error.message() +
                  R"(","type":"invalid_request_error","param":null,"code":null}})");
    return false;
  }
  Request request;
  std::string target(message.target());
  size_t mark = target.find('?');
  request.path = target.substr(0, mark);
  if (mark != std::string::npos) request.query = target.substr(mark + 1);
  request.method = std::string(message.method_string());
  request.body = message.body();
  request.header = [&message](std::string_view name) {
    return std::string(message[beast::string_view(name.data(), name.size())]);
  };
  Answer answer(socket, message.version(), message.keep_alive(),
                message.method() == http::verb::head);
  handler(request, answer);
  if (!answer.sent()) answer.send(500, "text/plain", "no answer");
  answer.end();
  return answer.keep_alive();
}

}  // namespace speech::server

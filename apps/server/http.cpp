#include "http.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
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

using Clock = std::chrono::steady_clock;

// Waits until the socket is ready for `events`; false once the time is over.
bool wait_ready(int fd, short events, Clock::duration left) {
  auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(left).count();
  if (milliseconds <= 0) return false;
  pollfd p{fd, events, 0};
  return ::poll(&p, 1, static_cast<int>(std::min<int64_t>(milliseconds, 1 << 30))) > 0;
}

// A socket whose every wait ends, so that a client that stops sending or reading cannot hold a
// thread for ever: Boost's own blocking calls retry when a socket timeout strikes. All reads
// together take `timeout` at most, each write as long without progress.
class TimedStream {
 public:
  TimedStream(tcp::socket& socket, Clock::duration timeout)
      : socket_(socket), timeout_(timeout), deadline_(Clock::now() + timeout) {}

  int fd() const { return socket_.native_handle(); }

  template <typename Buffers>
  size_t read_some(const Buffers& buffers, beast::error_code& error) {
    return attempt(
        POLLIN, [&] { return deadline_ - Clock::now(); },
        [&] { return socket_.read_some(buffers, error); }, error);
  }
  template <typename Buffers>
  size_t write_some(const Buffers& buffers, beast::error_code& error) {
    return attempt(
        POLLOUT, [&] { return timeout_; }, [&] { return socket_.write_some(buffers, error); },
        error);
  }
  // The forms that throw: part of what Beast asks of a stream.
  template <typename Buffers>
  size_t read_some(const Buffers& buffers) {
    beast::error_code error;
    size_t n = read_some(buffers, error);
    if (error) throw beast::system_error(error);
    return n;
  }
  template <typename Buffers>
  size_t write_some(const Buffers& buffers) {
    beast::error_code error;
    size_t n = write_some(buffers, error);
    if (error) throw beast::system_error(error);
    return n;
  }

 private:
  template <typename Left, typename Transfer>
  size_t attempt(short events, Left left, Transfer transfer, beast::error_code& error) {
    while (wait_ready(fd(), events, left())) {
      size_t n = transfer();
      if (error != asio::error::would_block && error != asio::error::try_again) return n;
    }
    error = beast::error::timeout;
    return 0;
  }

  tcp::socket& socket_;  // not blocking
  Clock::duration timeout_;
  Clock::time_point deadline_;
};

class Answer final : public Response {
 public:
  Answer(TimedStream& stream, unsigned version, bool keep_alive, bool head)
      : stream_(stream), version_(version), keep_alive_(keep_alive), head_(head) {}

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
      http::write_header(stream_, serializer, error);
    } else {
      http::write(stream_, r, error);
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
    http::write_header(stream_, serializer, error);
    failed_ = failed_ || error;
  }

  bool write_event(std::string_view data) override {
    std::string text = "data: " + std::string(data) + "\n\n";
    return write_raw(text);
  }

  void end() {
    if (!chunked_ || failed_) return;
    beast::error_code error;
    asio::write(stream_, http::make_chunk_last(), error);
    failed_ = failed_ || error;
  }

  bool client_gone() override {
    if (failed_) return true;
    char byte;
    ssize_t n = ::recv(stream_.fd(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
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
      asio::write(stream_, http::make_chunk(buffer), error);
    } else {
      asio::write(stream_, buffer, error);
    }
    failed_ = static_cast<bool>(error);
    return !failed_;
  }

  TimedStream& stream_;
  unsigned version_;
  bool keep_alive_, head_;
  bool sent_ = false, chunked_ = false, failed_ = false;
  std::vector<std::pair<std::string, std::string>> headers_;
};

}  // namespace

struct HttpServer::Impl {
  struct Connection {
    int fd;
    bool reading = false;  // a request, or waiting for one: nothing is owed to the client
  };

  ServerSettings settings;
  Handler handler;
  asio::io_context context;
  tcp::acceptor acceptor{context};
  std::atomic<bool> stopping{false};
  std::mutex mutex;
  std::condition_variable changed;
  bool cutting = false;               // stop() was called twice
  std::list<Connection> connections;  // open ones
  int open = 0;                       // their number, and those whose thread is about to start

  void serve(tcp::socket socket);
  bool serve_one(tcp::socket& socket, beast::flat_buffer& buffer, Connection& connection);
  void read_error(TimedStream& stream, beast::error_code error, bool nothing_read);
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

bool HttpServer::run() {
  Impl& s = *impl_;
  while (!s.stopping) {
    // A short wait rather than a blocking accept, so that stop() needs no tricks.
    if (!wait_ready(s.acceptor.native_handle(), POLLIN, std::chrono::milliseconds(200))) continue;
    beast::error_code error;
    tcp::socket socket(s.context);
    s.acceptor.accept(socket, error);
    if (!error) socket.non_blocking(true, error);
    if (error) {  // no descriptor left, say: the client stays in the backlog until one is
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      continue;
    }
    std::unique_lock lock(s.mutex);
    if (s.open >= s.settings.connections) {
      lock.unlock();
      // What a new socket buffers is enough for this answer: no wait.
      TimedStream stream(socket, std::chrono::seconds(1));
      Answer(stream, 11, false, false)
          .send(503, "application/json",
                R"({"error":{"message":"too many connections","type":"server_error",)"
                R"("param":null,"code":"busy"}})");
      continue;
    }
    ++s.open;
    lock.unlock();
    try {
      std::thread([impl = impl_, socket = std::move(socket)]() mutable {
        impl->serve(std::move(socket));
      }).detach();
    } catch (const std::system_error&) {
      lock.lock();
      --s.open;
    }
  }
  beast::error_code ignored;
  s.acceptor.close(ignored);
  std::unique_lock lock(s.mutex);
  auto ended = [&] { return s.open == 0; };
  s.changed.wait_for(lock, s.settings.grace, [&] { return ended() || s.cutting; });
  // Who is left finds the client gone, whether it reads, writes or computes.
  for (const Impl::Connection& c : s.connections) ::shutdown(c.fd, SHUT_RDWR);
  return s.changed.wait_for(lock, s.settings.grace, ended);
}

void HttpServer::stop() {
  std::lock_guard lock(impl_->mutex);
  if (impl_->stopping.exchange(true)) impl_->cutting = true;
  for (const Impl::Connection& c : impl_->connections) {
    if (c.reading) ::shutdown(c.fd, SHUT_RD);
  }
  impl_->changed.notify_all();
}

void HttpServer::Impl::serve(tcp::socket socket) {
  std::list<Connection>::iterator place;
  {
    std::lock_guard lock(mutex);
    place = connections.insert(connections.end(), {socket.native_handle()});
  }
  try {
    beast::error_code error;
    socket.set_option(tcp::no_delay(true), error);
    beast::flat_buffer buffer;
    while (serve_one(socket, buffer, *place)) {
    }
    socket.shutdown(tcp::socket::shutdown_send, error);
  } catch (const std::exception& e) {
    log_warn("connection: {}", e.what());
  }
  std::lock_guard lock(mutex);
  connections.erase(place);
  beast::error_code error;
  socket.close(error);
  if (--open == 0) changed.notify_all();
}

// Says what was wrong with a request that did not arrive whole, where there is someone to tell.
void HttpServer::Impl::read_error(TimedStream& stream, beast::error_code error, bool nothing_read) {
  int status = error == http::error::body_limit     ? 413
               : error == http::error::header_limit ? 431
               : error == beast::error::timeout     ? 408
                                                    : 400;
  if (error == http::error::end_of_stream || (status == 408 && nothing_read) ||
      error.category() == asio::error::get_system_category() ||
      error.category() == asio::error::get_misc_category()) {
    return;
  }
  std::string message = status == 413
                            ? fmt::format("the body is larger than {} bytes", settings.body_limit)
                            : error.message();
  Answer(stream, 11, false, false)
      .send(status, "application/json",
            fmt::format(R"({{"error":{{"message":"{}","type":"invalid_request_error",)"
                        R"("param":null,"code":null}}}})",
                        message));
  // Closing with bytes unread would reset the connection and could take the answer with it.
  beast::error_code ignored;
  std::array<char, 4096> sink;
  ::shutdown(stream.fd(), SHUT_WR);
  for (size_t n = 0; !ignored && n < settings.body_limit;) {
    n += stream.read_some(asio::buffer(sink), ignored);
  }
}

bool HttpServer::Impl::serve_one(tcp::socket& socket, beast::flat_buffer& buffer,
                                 Connection& connection) {
  {
    std::lock_guard lock(mutex);
    if (stopping) return false;
    connection.reading = true;
  }
  TimedStream stream(socket, settings.idle_timeout);
  http::request_parser<http::string_body> parser;
  parser.body_limit(settings.body_limit);
  parser.header_limit(32 << 10);
  beast::error_code error;
  http::read_header(stream, buffer, parser, error);
  if (!error && parser.get()[http::field::expect] == "100-continue") {
    http::response<http::empty_body> go_on{http::status::continue_, parser.get().version()};
    http::write(stream, go_on, error);
  }
  if (!error) http::read(stream, buffer, parser, error);
  {
    std::lock_guard lock(mutex);
    connection.reading = false;
  }
  if (error) {
    read_error(stream, error, buffer.size() == 0 && !parser.got_some());
    return false;
  }
  const auto& message = parser.get();
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
  Answer answer(stream, message.version(), message.keep_alive(),
                message.method() == http::verb::head);
  handler(request, answer);
  if (!answer.sent()) answer.send(500, "text/plain", "no answer");
  answer.end();
  return answer.keep_alive();
}

}  // namespace speech::server

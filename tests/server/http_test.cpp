// The HTTP server by itself: framing, limits, clients that are slow, silent or gone, and its end.
#include "server/http.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <thread>

#include "http_client.h"

namespace speech::server {
namespace {

using namespace std::chrono_literals;
using testing::HttpClient;
using testing::Reply;

// Something that happens once, and that others wait for.
class Event {
 public:
  void set() {
    std::lock_guard lock(mutex_);
    happened_ = true;
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return happened_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool happened_ = false;
};

class Running {
 public:
  Running(ServerSettings settings, Handler handler)
      : server_(
            [&] {
              settings.port = 0;
              return settings;
            }(),
            std::move(handler)),
        port_(server_.port()),
        thread_([this] { server_.run(); }) {}
  ~Running() {
    if (thread_.joinable()) end();
  }
  int port() const { return port_; }
  void stop() { server_.stop(); }
  void join() { thread_.join(); }
  void end() {
    stop();
    join();
  }

 private:
  HttpServer server_;
  int port_;
  std::thread thread_;
};

void echo(const Request& request, Response& response) {
  response.add_header("X-Query", request.query);
  response.send(
      200, "text/plain",
      request.method + " " + request.path + " " + request.header("x-word") + " " + request.body);
}

TEST(HttpServer, AnswersSeveralRequestsOnOneConnection) {
  Running server({}, echo);
  HttpClient client(server.port());
  Reply reply = client.request("POST", "/a/b?c=d", "body", {{"X-Word", "w"}});
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.body, "POST /a/b w body");
  EXPECT_EQ(reply.headers["x-query"], "c=d");
  EXPECT_EQ(reply.headers["content-type"], "text/plain");
  reply = client.request("HEAD", "/h");
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.headers["content-length"], "9");  // "HEAD /h  "
  EXPECT_EQ(client.request("GET", "/after-head").body, "GET /after-head  ");

  // Two requests sent before the first answer; a body in chunks; one that asks to be let go on.
  client.send_request("GET", "/1");
  client.send_request("GET", "/2");
  EXPECT_EQ(client.read().body, "GET /1  ");
  EXPECT_EQ(client.read().body, "GET /2  ");
  client.send(
      "POST /chunked HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
      "3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n");
  EXPECT_EQ(client.read().body, "POST /chunked  abcde");
  client.send(
      "POST /wait HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  EXPECT_EQ(client.read().status, 100);
  client.send("ok");
  EXPECT_EQ(client.read().body, "POST /wait  ok");

  // HTTP/1.0 ends the connection.
  client.send("GET /old HTTP/1.0\r\n\r\n");
  EXPECT_EQ(client.read().body, "GET /old  ");
  EXPECT_EQ(client.read_some(), "");
}

TEST(HttpServer, EventsComeInChunksOrUntilTheEnd) {
  Running server({}, [](const Request&, Response& response) {
    response.begin_events();
    EXPECT_TRUE(response.write_event("one"));
    EXPECT_TRUE(response.write_event("two"));
  });
  HttpClient client(server.port());
  Reply reply = client.request("GET", "/");
  EXPECT_EQ(reply.headers["content-type"], "text/event-stream");
  EXPECT_EQ(reply.headers["transfer-encoding"], "chunked");
  EXPECT_EQ(reply.events(), (std::vector<std::string>{"one", "two"}));
  EXPECT_EQ(client.request("GET", "/").events().size(), 2u) << "the connection goes on";
  client.send("GET / HTTP/1.0\r\n\r\n");
  reply = client.read();
  EXPECT_EQ(reply.headers.count("transfer-encoding"), 0u);
  EXPECT_EQ(reply.body, "data: one\n\ndata: two\n\n");
}

TEST(HttpServer, RefusesWhatIsTooLargeOrMalformed) {
  Running server({.body_limit = 1000}, echo);
  EXPECT_EQ(HttpClient(server.port()).request("POST", "/", std::string(1000, 'x')).status, 200);
  Reply reply = HttpClient(server.port()).request("POST", "/", std::string(1001, 'x'));
  EXPECT_EQ(reply.status, 413);
  EXPECT_NE(reply.body.find("larger than 1000 bytes"), std::string::npos) << reply.body;
  EXPECT_EQ(reply.headers["connection"], "close");

  // A body that does not say its length, and one that says more than there can be.
  HttpClient chunked(server.port());
  chunked.send("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
  for (int i = 0; i < 11; ++i) chunked.send("64\r\n" + std::string(100, 'x') + "\r\n");
  EXPECT_EQ(chunked.read().status, 413);
  HttpClient huge(server.port());
  huge.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 18446744073709551615\r\n\r\n");
  EXPECT_EQ(huge.read().status, 413);

  HttpClient headers(server.port());
  headers.send("GET / HTTP/1.1\r\nX-Long: " + std::string(40 << 10, 'x') + "\r\n\r\n");
  EXPECT_EQ(headers.read().status, 431);
  for (const char* text :
       {"nonsense\r\n\r\n", "GET / HTTP/1.1\r\nno colon\r\n\r\n", "GET / HTTP/9.9\r\n\r\n",
        "POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        "POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"}) {
    HttpClient client(server.port());
    client.send(text);
    EXPECT_EQ(client.read().status, 400) << text;
    EXPECT_EQ(client.read_some(), "") << text;
  }
}

TEST(HttpServer, HalfARequestHoldsUpNobodyAndIsGivenUp) {
  Running server({.idle_timeout = 300ms}, echo);
  HttpClient head(server.port()), body(server.port()), silent(server.port());
  head.send("POST / HTTP/1.1\r\nHos");
  body.send("POST / HTTP/1.1\r\nContent-Length: 10\r\n\r\n12345");
  EXPECT_EQ(HttpClient(server.port()).request("GET", "/").status, 200);
  EXPECT_EQ(head.read().status, 408);
  EXPECT_EQ(body.read().status, 408);
  EXPECT_EQ(silent.read().status, 0) << "nothing is owed to a client that never spoke";
  EXPECT_EQ(HttpClient(server.port()).request("GET", "/").status, 200);
}

TEST(HttpServer, MoreConnectionsThanAllowedAreTurnedAway) {
  Running server({.connections = 2}, echo);
  auto first = std::make_unique<HttpClient>(server.port());
  HttpClient second(server.port());
  EXPECT_EQ(first->request("GET", "/").status, 200);
  EXPECT_EQ(second.request("GET", "/").status, 200);
  EXPECT_EQ(HttpClient(server.port()).read().status, 503);
  first.reset();
  int status;
  while ((status = HttpClient(server.port()).request("GET", "/").status) != 200) {
    EXPECT_TRUE(status == 503 || status == 0);  // until the server has seen the first one go
  }
}

TEST(HttpServer, TellsThatAClientHasLeft) {
  for (std::string path : {"/quiet", "/events"}) {
    Event arrived, seen;
    Running server({}, [&](const Request& request, Response& response) {
      if (request.path == "/") return echo(request, response);
      EXPECT_FALSE(response.client_gone());
      arrived.set();
      if (request.path == "/events") response.begin_events();
      while (!response.client_gone()) std::this_thread::sleep_for(1ms);
      EXPECT_FALSE(response.write_event("to nobody"));
      seen.set();
    });
    HttpClient client(server.port());
    client.send_request("GET", path);
    arrived.wait();
    EXPECT_EQ(HttpClient(server.port()).request("GET", "/").status, 200) << "others are served";
    client.leave();
    seen.wait();
  }
}

TEST(HttpServer, AClientThatReadsNoAnswerIsGivenUp) {
  Event given_up;
  Running server({.idle_timeout = 200ms}, [&](const Request&, Response& response) {
    response.begin_events();
    std::string much(1 << 16, 'x');
    while (response.write_event(much)) {
    }
    given_up.set();
  });
  HttpClient client(server.port());
  client.send_request("GET", "/");
  given_up.wait();
}

TEST(HttpServer, EndsWithTheRequestsUnderWayAnswered) {
  Event arrived, go_on;
  Running server({}, [&](const Request&, Response& response) {
    arrived.set();
    go_on.wait();
    EXPECT_FALSE(response.client_gone());
    response.send(200, "text/plain", "answered");
  });
  HttpClient busy(server.port()), idle(server.port()), half(server.port());
  busy.send_request("GET", "/");
  half.send("GET / HTT");
  arrived.wait();
  server.stop();
  EXPECT_EQ(idle.read_some(), "") << "an idle connection is closed at once";
  half.read_some();
  go_on.set();
  EXPECT_EQ(busy.read().body, "answered");
  EXPECT_EQ(busy.read_some(), "") << "and no other request is taken";
  server.join();
  EXPECT_THROW(HttpClient client(server.port()), std::runtime_error);
}

TEST(HttpServer, CutsOffWhoDoesNotEnd) {
  for (bool twice : {false, true}) {
    Event arrived;
    Running server({.grace = twice ? std::chrono::milliseconds(1h) : 100ms},
                   [&](const Request&, Response& response) {
                     arrived.set();
                     while (!response.client_gone()) std::this_thread::sleep_for(1ms);
                   });
    HttpClient client(server.port());
    client.send_request("GET", "/");
    arrived.wait();
    server.stop();
    if (twice) server.stop();
    server.join();
    EXPECT_EQ(client.read().status, 0);
  }
}

TEST(HttpServer, LeavesAHandlerThatDoesNotEnd) {
  auto arrived = std::make_shared<Event>(), go_on = std::make_shared<Event>();
  {
    HttpServer server({.port = 0, .grace = 50ms}, [=](const Request&, Response&) {
      arrived->set();
      go_on->wait();
    });
    bool all_ended = true;
    std::thread thread([&] { all_ended = server.run(); });
    HttpClient client(server.port());
    client.send_request("GET", "/");
    arrived->wait();
    server.stop();
    thread.join();
    EXPECT_FALSE(all_ended);
  }
  go_on->set();  // it ends without the server
}

TEST(HttpServer, AnAddressThatIsTakenIsAnError) {
  Running server({}, echo);
  EXPECT_ANY_THROW(HttpServer({.port = server.port()}, echo));
  EXPECT_ANY_THROW(HttpServer({.host = "203.0.113.1", .port = 0}, echo));  // nobody's (RFC 5737)
}

}  // namespace
}  // namespace speech::server

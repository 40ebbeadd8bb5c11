// An HTTP/1.1 client on a plain socket: independent of the server's library, and able to be slow,
// rude and gone.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace speech::testing {

struct Reply {
  int status = 0;                              // 0: the connection ended without an answer
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
  // The data of the server-sent events in `body`.
  std::vector<std::string> events() const {
    std::vector<std::string> list;
    size_t from = 0;
    for (size_t end; (end = body.find("\n\n", from)) != std::string::npos; from = end + 2) {
      std::string event = body.substr(from, end - from);
      list.push_back(event.starts_with("data: ") ? event.substr(6) : "not data: " + event);
    }
    return list;
  }
};

class HttpClient {
 public:
  explicit HttpClient(int port) : fd_(::socket(AF_INET, SOCK_STREAM, 0)), port_(port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
      ::close(fd_);
      throw std::runtime_error("cannot connect");
    }
  }
  ~HttpClient() { leave(); }
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  void leave() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

  // False when the server closed meanwhile.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }

  using Headers = std::vector<std::pair<std::string, std::string>>;

  // `headers` replace the default ones of the same name.
  bool send_request(const std::string& method, const std::string& path, std::string_view body = {},
                    const Headers& headers = {}) {
    std::map<std::string, std::string> all{
        {"Host", "127.0.0.1:" + std::to_string(port_)},
        {"Content-Length", std::to_string(body.size())},
    };
    for (const auto& [name, value] : headers) all[name] = value;
    std::string text = method + " " + path + " HTTP/1.1\r\n";
    for (const auto& [name, value] : all) text += name + ": " + value + "\r\n";
    return send(text + "\r\n" + std::string(body));
  }

  // Reads one answer. `head`: of a HEAD request, which has no body.
  Reply read(bool head = false) {
    Reply reply;
    std::string line;
    if (!read_line(line)) return reply;
    if (!line.starts_with("HTTP/1.")) throw std::runtime_error("no status line: " + line);
    reply.status = std::stoi(line.substr(9, 3));
    while (read_line(line) && !line.empty()) {
      size_t colon = line.find(": ");
      std::string name = line.substr(0, colon);
      std::transform(name.begin(), name.end(), name.begin(),
                     [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
      reply.headers[name] = line.substr(colon + 2);
    }
    if (head || reply.status == 204 || reply.status == 100) return reply;
    if (reply.headers.count("content-length")) {
      reply.body = read_bytes(std::stoul(reply.headers["content-length"]));
    } else if (reply.headers.count("transfer-encoding")) {
      for (std::string chunk; read_chunk(chunk);) reply.body += chunk;
    } else {
      while (fill()) {
      }
      reply.body = std::exchange(buffer_, {});
    }
    return reply;
  }

  Reply request(const std::string& method, const std::string& path, std::string_view body = {},
                const Headers& headers = {}) {
    send_request(method, path, body, headers);
    return read(method == "HEAD");
  }

  // The next piece of what the server has to say, as it comes; empty at the end.
  std::string read_some() {
    if (buffer_.empty()) fill();
    return std::exchange(buffer_, {});
  }

 private:
  bool fill() {
    char bytes[4096];
    ssize_t n = ::recv(fd_, bytes, sizeof bytes, 0);
    if (n > 0) buffer_.append(bytes, static_cast<size_t>(n));
    return n > 0;
  }
  bool read_line(std::string& line) {
    size_t end;
    while ((end = buffer_.find("\r\n")) == std::string::npos) {
      if (!fill()) return false;
    }
    line = buffer_.substr(0, end);
    buffer_.erase(0, end + 2);
    return true;
  }
  std::string read_bytes(size_t count) {
    while (buffer_.size() < count && fill()) {
    }
    std::string bytes = buffer_.substr(0, count);
    buffer_.erase(0, count);
    return bytes;
  }
  bool read_chunk(std::string& chunk) {
    std::string line;
    if (!read_line(line)) throw std::runtime_error("the stream was cut");
    size_t size = std::stoul(line, nullptr, 16);
    chunk = read_bytes(size);
    read_line(line);
    return size > 0;
  }

  int fd_, port_;
  std::string buffer_;
};

}  // namespace speech::testing

#include "tests/support/http_client.h"

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <cstdlib>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

namespace trainyard::testing_support {
namespace {

/// The content of a chunked body (RFC 9112, section 7.1), as far as it has come.
std::string joined(std::string_view chunks) {
  std::string content;
  while (true) {
    const size_t line = chunks.find("\r\n");
    if (line == std::string_view::npos) return content;
    const size_t size = std::strtoul(std::string(chunks.substr(0, line)).c_str(), nullptr, 16);
    chunks.remove_prefix(line + 2);
    if (size == 0) return content;
    content += chunks.substr(0, size);
    chunks.remove_prefix(std::min(chunks.size(), size + 2));
  }
}

}  // namespace

UniqueFd connect_to(std::string_view address) {
  const size_t colon = address.rfind(':');
  const auto port =
      htons(static_cast<uint16_t>(std::atoi(std::string(address.substr(colon + 1)).c_str())));
  if (address.front() == '[') {
    sockaddr_in6 to{};
    to.sin6_family = AF_INET6;
    to.sin6_addr = in6addr_loopback;
    to.sin6_port = port;
    UniqueFd fd(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) != 0) return {};
    return fd;
  }
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port = port;
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) != 0) return {};
  return fd;
}

std::string read_to_end(int fd, std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  std::string text;
  std::array<char, 4096> buffer{};
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    pollfd ready{fd, POLLIN, 0};
    if (left.count() <= 0 || ::poll(&ready, 1, static_cast<int>(left.count())) <= 0) return text;
    const ssize_t count = ::recv(fd, buffer.data(), buffer.size(), 0);
    if (count <= 0) return text;
    text.append(buffer.data(), static_cast<size_t>(count));
  }
}

bool send_text(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::send(fd, text.data(), text.size(), MSG_NOSIGNAL);
    if (count <= 0) return false;
    text.remove_prefix(static_cast<size_t>(count));
  }
  return true;
}

HttpAnswer http_request(std::string_view address, std::string_view method, std::string_view target,
                        std::chrono::milliseconds timeout, std::string_view body) {
  const UniqueFd fd = connect_to(address);
  HttpAnswer answer;
  if (!fd.valid()) return answer;
  std::string request = std::string(method) + " " + std::string(target) +
                        " HTTP/1.1\r\nHost: test\r\nConnection: close\r\n";
  if (!body.empty()) {
    request +=
        "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) + "\r\n";
  }
  send_text(fd.get(), request + "\r\n" + std::string(body));
  const std::string text = read_to_end(fd.get(), timeout);
  const size_t end = text.find("\r\n\r\n");
  if (end == std::string::npos || text.compare(0, 9, "HTTP/1.1 ") != 0) return answer;
  answer.status = std::atoi(text.c_str() + 9);
  answer.head = text.substr(0, end);
  answer.body = text.substr(end + 4);
  if (answer.head.find("Transfer-Encoding: chunked") != std::string::npos)
    answer.body = joined(answer.body);
  return answer;
}

}  // namespace trainyard::testing_support

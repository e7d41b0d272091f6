#include "common/http/fetch.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <netdb.h>
#include <poll.h>
#include <string_view>
#include <sys/socket.h>

#include "common/base/unique_fd.h"

namespace trainyard::http {
namespace {

using Deadline = std::chrono::steady_clock::time_point;

Error overdue(const std::string& address, const FetchLimits& limits) {
  return {ErrorCode::kDeadline, "http://" + address + ": no whole answer within " +
                                    std::to_string(limits.timeout.count()) + " ms"};
}

/// Waits until the descriptor is ready; false when the time is over.
bool wait_for(int fd, short events, Deadline deadline) {
  while (true) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) return false;
    pollfd ready{fd, events, 0};
    const int count = ::poll(&ready, 1, static_cast<int>(left.count()));
    if (count > 0) return true;
    if (count == 0 || errno != EINTR) return false;
  }
}

/// A connected socket; its errors name the address.
Result<UniqueFd> connect_to(const std::string& address, const FetchLimits& limits,
                            Deadline deadline) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == address.size()) {
    return Error{ErrorCode::kInvalidConfig, "address: found \"" + address + "\", wanted HOST:PORT"};
  }
  std::string host = address.substr(0, colon);
  if (host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failure =
      ::getaddrinfo(host.c_str(), address.substr(colon + 1).c_str(), &hints, &found);
  if (failure != 0) {
    return Error{ErrorCode::kInvalidConfig,
                 "address: found \"" + address + "\": " + ::gai_strerror(failure)};
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  int error_number = 0;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    UniqueFd fd(::socket(one->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!fd.valid()) continue;
    if (::connect(fd.get(), one->ai_addr, one->ai_addrlen) != 0 && errno != EINPROGRESS) {
      error_number = errno;
      continue;
    }
    if (!wait_for(fd.get(), POLLOUT, deadline)) return overdue(address, limits);
    socklen_t size = sizeof error_number;
    ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error_number, &size);
    if (error_number == 0) return fd;
  }
  return Error{ErrorCode::kUnavailable,
               "connect to " + address + ": " + std::strerror(error_number)};
}

Status send_all(int fd, std::string_view text, const std::string& address,
                const FetchLimits& limits, Deadline deadline) {
  while (!text.empty()) {
    const ssize_t count = ::send(fd, text.data(), text.size(), MSG_NOSIGNAL);
    if (count > 0) {
      text.remove_prefix(static_cast<size_t>(count));
      continue;
    }
    if (errno != EAGAIN && errno != EINTR) return io_error("send to " + address, errno);
    if (!wait_for(fd, POLLOUT, deadline)) return overdue(address, limits);
  }
  return {};
}

Result<std::string> receive_all(int fd, const std::string& address, const FetchLimits& limits,
                                Deadline deadline) {
  std::string text;
  std::array<char, 16384> buffer{};
  while (true) {
    if (!wait_for(fd, POLLIN, deadline)) return overdue(address, limits);
    const ssize_t count = ::recv(fd, buffer.data(), buffer.size(), 0);
    if (count == 0) return text;
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (count < 0) return io_error("receive from " + address, errno);
    text.append(buffer.data(), static_cast<size_t>(count));
    if (static_cast<int64_t>(text.size()) > limits.bytes_max) {
      return Error{ErrorCode::kInvalidData, "http://" + address + ": more than " +
                                                std::to_string(limits.bytes_max) + " bytes"};
    }
  }
}

}  // namespace

Result<std::string> fetch(const std::string& address, const std::string& path,
                          const FetchLimits& limits) {
  const Deadline deadline = std::chrono::steady_clock::now() + limits.timeout;
  TRAINYARD_ASSIGN(const UniqueFd fd, connect_to(address, limits, deadline));
  // HTTP/1.0: the end of the answer is the end of the connection, and it comes in one piece.
  const std::string request = "GET " + path + " HTTP/1.0\r\nHost: " + address + "\r\n\r\n";
  TRAINYARD_TRY(send_all(fd.get(), request, address, limits, deadline));
  TRAINYARD_ASSIGN(std::string answer, receive_all(fd.get(), address, limits, deadline));
  const size_t end = answer.find("\r\n\r\n");
  const std::string first = answer.substr(0, answer.find("\r\n"));
  if (end == std::string::npos || !first.starts_with("HTTP/1.")) {
    return Error{ErrorCode::kInvalidData, "http://" + address + path + ": found no HTTP answer"};
  }
  if (first.find(" 200") == std::string::npos) {
    return Error{ErrorCode::kInvalidData,
                 "http://" + address + path + ": found " + first.substr(0, 80) + ", wanted 200"};
  }
  return answer.substr(end + 4);
}

}  // namespace trainyard::http

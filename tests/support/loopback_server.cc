#include "tests/support/loopback_server.h"

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

#include <openssl/ssl.h>

#include "common/base/check.h"
#include "common/pem/pem.h"

namespace trainyard::testing_support {
namespace {

/// A test that waits longer has failed.
constexpr timeval kPatience{60, 0};

/// A fatal alert handshake_failure, before any key (RFC 8446, 5.1 and 6).
constexpr std::array<char, 7> kHandshakeFailure = {0x15, 0x03, 0x03, 0x00, 0x02, 0x02, 0x28};

pem::Certificate read_certificate(const std::string& text) {
  pem::Certificate certificate = pem::next_certificate(pem::reader_of(text));
  TRAINYARD_CHECK(certificate != nullptr);
  return certificate;
}

std::shared_ptr<SSL_CTX> tls_context(const LoopbackServer::Options& options) {
  if (!options.identity) return nullptr;
  std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_server_method()), SSL_CTX_free);
  const pem::Certificate certificate = read_certificate(options.identity->certificate);
  TRAINYARD_CHECK(SSL_CTX_use_certificate(context.get(), certificate.get()) == 1);
  const pem::Key key = pem::read_key(options.identity->key);
  TRAINYARD_CHECK(key != nullptr && SSL_CTX_use_PrivateKey(context.get(), key.get()) == 1);
  if (options.tls_1_1_only) {
    SSL_CTX_set_security_level(context.get(), 0);
    SSL_CTX_set_min_proto_version(context.get(), TLS1_VERSION);
    SSL_CTX_set_max_proto_version(context.get(), TLS1_1_VERSION);
  }
  if (!options.client_authority.empty()) {
    const pem::Certificate authority = read_certificate(options.client_authority);
    X509_STORE_add_cert(SSL_CTX_get_cert_store(context.get()), authority.get());
    SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  }
  return context;
}

}  // namespace

std::string ReceivedRequest::header(std::string_view name) const {
  const std::string lines = "\r\n" + head;
  size_t begin = lines.find("\r\n" + std::string(name) + ":");
  if (begin == std::string::npos) return "";
  begin = lines.find_first_not_of(' ', begin + name.size() + 3);
  return lines.substr(begin, lines.find("\r\n", begin) - begin);
}

bool LoopbackConnection::has_unread() const { return ssl_ != nullptr && SSL_pending(ssl_) > 0; }

int LoopbackConnection::read_some(char* data, size_t size) {
  if (ssl_ != nullptr) return SSL_read(ssl_, data, static_cast<int>(size));
  return static_cast<int>(::recv(fd_, data, size, 0));
}

std::optional<ReceivedRequest> LoopbackConnection::read_request() {
  std::array<char, 4096> buffer{};
  const auto more = [&] {
    const int count = read_some(buffer.data(), buffer.size());
    if (count > 0) held_.append(buffer.data(), static_cast<size_t>(count));
    return count > 0;
  };
  size_t end = 0;
  while ((end = held_.find("\r\n\r\n")) == std::string::npos)
    if (!more()) return std::nullopt;
  ReceivedRequest request;
  const size_t line_end = held_.find("\r\n");
  request.line = held_.substr(0, line_end);
  request.head = held_.substr(line_end + 2, end - line_end);
  held_.erase(0, end + 4);
  const std::string length = request.header("Content-Length");
  const size_t size = length.empty() ? 0 : std::stoul(length);
  while (held_.size() < size)
    if (!more()) return std::nullopt;
  request.body = held_.substr(0, size);
  held_.erase(0, size);
  return request;
}

bool LoopbackConnection::write(std::string_view bytes) {
  while (!bytes.empty()) {
    const auto count =
        ssl_ != nullptr ? SSL_write(ssl_, bytes.data(), static_cast<int>(bytes.size()))
                        : static_cast<int>(::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL));
    if (count <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(count));
  }
  return true;
}

bool LoopbackConnection::answer(int status, std::string_view body, std::string_view headers) {
  return write("HTTP/1.1 " + std::to_string(status) +
               " X\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" +
               std::string(headers) + "\r\n" + std::string(body));
}

bool LoopbackConnection::chunk(std::string_view bytes) {
  std::array<char, 32> size{};
  const int count = std::snprintf(size.data(), size.size(), "%zx\r\n", bytes.size());
  return write(std::string(size.data(), static_cast<size_t>(count)) + std::string(bytes) + "\r\n");
}

void LoopbackConnection::wait_until_gone() {
  std::array<char, 4096> buffer{};
  while (read_some(buffer.data(), buffer.size()) > 0) {
  }
}

void LoopbackConnection::reset() {
  const linger now{1, 0};
  ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
}

LoopbackServer::LoopbackServer(Handler handler, const Options& options)
    : handler_(std::move(handler)),
      greet_(options.greet),
      v6_(options.v6),
      tls_(tls_context(options)) {
  // OpenSSL writes without MSG_NOSIGNAL.
  std::signal(SIGPIPE, SIG_IGN);
  listener_ = UniqueFd(::socket(v6_ ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_storage address{};
  socklen_t size = v6_ ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  if (v6_) {
    auto* v6 = reinterpret_cast<sockaddr_in6*>(&address);
    v6->sin6_family = AF_INET6;
    v6->sin6_addr = in6addr_loopback;
  } else {
    auto* v4 = reinterpret_cast<sockaddr_in*>(&address);
    v4->sin_family = AF_INET;
    v4->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  }
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  TRAINYARD_CHECK(::bind(listener_.get(), generic, size) == 0);
  TRAINYARD_CHECK(::listen(listener_.get(), 64) == 0);
  TRAINYARD_CHECK(::getsockname(listener_.get(), generic, &size) == 0);
  port_ = ntohs(v6_ ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                    : reinterpret_cast<sockaddr_in*>(&address)->sin_port);
  acceptor_ = std::jthread([this](const std::stop_token& stop) { accept_all(stop); });
}

LoopbackServer::~LoopbackServer() {
  acceptor_.request_stop();
  ::shutdown(listener_.get(), SHUT_RDWR);
  acceptor_.join();
  drop_all();
  threads_.clear();  // joins
}

void LoopbackServer::drop_all() {
  const std::lock_guard lock(mutex_);
  for (const int fd : open_)
    ::shutdown(fd, SHUT_RDWR);
}

void LoopbackServer::accept_all(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    const int fd = ::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) return;
    ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof(kPatience));
    ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &kPatience, sizeof(kPatience));
    const int at_once = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &at_once, sizeof(at_once));
    {
      const std::lock_guard lock(mutex_);
      open_.push_back(fd);
      ++connections_;
    }
    threads_.emplace_back([this, fd] { serve(fd); });
  }
}

void LoopbackServer::serve(int fd) {
  const Greeting greeting = greet_ ? greet_() : Greeting::kServe;
  if (greeting == Greeting::kReset) {
    LoopbackConnection(fd, nullptr).reset();
  } else if (greeting == Greeting::kRefuseTls) {
    std::array<char, 4096> hello{};
    LoopbackConnection connection(fd, nullptr);
    if (connection.read_some(hello.data(), hello.size()) > 0)
      connection.write({kHandshakeFailure.data(), kHandshakeFailure.size()});
    ::shutdown(fd, SHUT_WR);
    connection.wait_until_gone();
  } else if (tls_ != nullptr) {
    SSL* const ssl = SSL_new(tls_.get());
    SSL_set_fd(ssl, fd);
    serve_tls(fd, ssl);
    SSL_free(ssl);
  } else {
    LoopbackConnection connection(fd, nullptr);
    handler_(connection);
  }
  const std::lock_guard lock(mutex_);
  open_.erase(std::find(open_.begin(), open_.end(), fd));
  ::close(fd);
}

void LoopbackServer::serve_tls(int fd, SSL* ssl) {
  if (SSL_accept(ssl) == 1) {
    LoopbackConnection connection(fd, ssl);
    handler_(connection);
    SSL_shutdown(ssl);
    return;
  }
  // A close with something unread would overtake the alert that says why.
  ::shutdown(fd, SHUT_WR);
  LoopbackConnection(fd, nullptr).wait_until_gone();
}

std::string LoopbackServer::url(std::string_view host) const {
  const std::string name =
      host.empty() ? (v6_ ? std::string("[::1]") : std::string("127.0.0.1")) : std::string(host);
  return (tls_ != nullptr ? "https://" : "http://") + name + ":" + std::to_string(port_);
}

int LoopbackServer::connections() const {
  const std::lock_guard lock(mutex_);
  return connections_;
}

}  // namespace trainyard::testing_support

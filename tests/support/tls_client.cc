#include "tests/support/tls_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <utility>

#include <openssl/ssl.h>

#include "common/base/check.h"

namespace trainyard::testing_support {
namespace {

/// A server that is silent for longer has failed the test.
constexpr timeval kPatience{60, 0};

}  // namespace

TlsClient::TlsClient(const std::filesystem::path& authority)
    : context_(SSL_CTX_new(TLS_client_method()), SSL_CTX_free) {
  TRAINYARD_CHECK(SSL_CTX_load_verify_locations(context_.get(), authority.c_str(), nullptr) == 1);
  SSL_CTX_set_verify(context_.get(), SSL_VERIFY_PEER, nullptr);
}

std::unique_ptr<TlsClient::Link> TlsClient::connect(int port, const char* from) const {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in own{};
  own.sin_family = AF_INET;
  ::inet_pton(AF_INET, from, &own.sin_addr);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&own), sizeof(own)) != 0) return nullptr;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof(kPatience));
  ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &kPatience, sizeof(kPatience));
  const int at_once = 1;
  ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &at_once, sizeof(at_once));
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
    return nullptr;
  std::shared_ptr<SSL> ssl(SSL_new(context_.get()), SSL_free);
  SSL_set_fd(ssl.get(), fd.get());
  if (SSL_connect(ssl.get()) != 1) return nullptr;
  return std::make_unique<Link>(std::move(fd), std::move(ssl));
}

}  // namespace trainyard::testing_support

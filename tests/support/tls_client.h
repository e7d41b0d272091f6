#pragma once

#include <filesystem>
#include <memory>
#include <utility>

#include "common/base/unique_fd.h"
#include "tests/support/loopback_server.h"

struct ssl_ctx_st;
struct ssl_st;

namespace trainyard::testing_support {

/// A TLS client of servers on 127.0.0.1, byte by byte. Thread-safe; each link is one thread's.
class TlsClient {
 public:
  /// Trusts the certificates in a PEM file alone.
  explicit TlsClient(const std::filesystem::path& authority);

  /// One connection.
  class Link {
   public:
    Link(UniqueFd fd, std::shared_ptr<ssl_st> ssl)
        : fd_(std::move(fd)), ssl_(std::move(ssl)), connection_(fd_.get(), ssl_.get()) {}
    LoopbackConnection& connection() { return connection_; }

   private:
    const UniqueFd fd_;
    const std::shared_ptr<ssl_st> ssl_;
    LoopbackConnection connection_;
  };

  /// Nothing when no server is there that is trusted. `from`: the address that the server sees, any
  /// of 127.0.0.0/8.
  std::unique_ptr<Link> connect(int port, const char* from = "127.0.0.1") const;

 private:
  std::shared_ptr<ssl_ctx_st> context_;
};

}  // namespace trainyard::testing_support

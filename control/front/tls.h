#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "common/base/error.h"

struct ssl_ctx_st;
struct ssl_st;

namespace trainyard::control {

/// What a server shows of itself over TLS, in PEM.
struct TlsIdentity {
  std::string certificate;  ///< with those of intermediate authorities after it
  std::string key;          ///< secret

  bool operator==(const TlsIdentity&) const = default;
};

/// One connection's TLS, on a socket that does not block. For one thread, which must block SIGPIPE.
class TlsSession {
 public:
  enum class Outcome { kDone, kWantsRead, kWantsWrite, kEnded };
  struct Step {
    Outcome outcome = Outcome::kEnded;
    size_t bytes = 0;  ///< of kDone
  };

  explicit TlsSession(std::shared_ptr<ssl_st> ssl) : ssl_(std::move(ssl)) {}

  /// Reads what was said; begins with the handshake. Ended: by the peer, or because it does not
  /// speak TLS as we want it.
  Step read(std::span<char> into);
  /// Part of it may be written. After kWants.. the same bytes are to come again.
  Step write(std::string_view bytes);
  /// What has come over the socket, handshake and all.
  int64_t bytes_received() const;
  /// Says that nothing more comes, without waiting.
  void say_goodbye();

 private:
  Step step_of(int returned) const;

  std::shared_ptr<ssl_st> ssl_;
};

/// Makes the sessions of a server: TLS 1.2 or newer, HTTP/2 alone (ALPN), no session is resumed.
class TlsServer {
 public:
  /// Errors: kInvalidConfig for a certificate or key that cannot be used.
  static Result<TlsServer> make(const TlsIdentity& identity);

  /// Null where memory is out. `socket` stays the caller's and outlives the session.
  std::unique_ptr<TlsSession> accept(int socket) const;

 private:
  std::shared_ptr<ssl_ctx_st> context_;
};

}  // namespace trainyard::control

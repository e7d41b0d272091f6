#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "common/base/error.h"
#include "common/base/time.h"
#include "operator/kube/config.h"

struct ssl_ctx_st;

namespace trainyard::kube {

/// To be called before the first thread that uses OpenSSL is made: at the end of the process those
/// threads are then gone before OpenSSL cleans up.
void prepare_openssl();

/// From now on no connection of this process reads the system's certificates: for programs whose
/// every server has an authority of its own (ServerConfig::authority). The library under the
/// transport reads all of them for each new connection, some 8 ms of processor time, although
/// TlsSetup trusts the authority alone. Changes the environment (SSL_CERT_FILE): to be called
/// before the first thread is made.
void leave_system_authorities_unread();

/// How connections to one server are secured, and why one could not be. Thread-safe.
class TlsSetup {
 public:
  /// `name`: what the server's certificate must say, a DNS name or an address. Errors:
  /// kInvalidConfig names the certificate or key that cannot be used.
  static Result<std::unique_ptr<TlsSetup>> make(const ServerConfig& config,
                                                const std::string& name);
  ~TlsSetup();

  /// Prepares a new OpenSSL context for one connection: TLS 1.2 or newer, the authority alone is
  /// trusted, the name must be a subject alternative name, the client certificate is offered. Files
  /// are read again here, as they are rotated; one that cannot be used leaves what was read before.
  Status configure(ssl_ctx_st* context) const;

  /// What made a handshake or a connection fail at or after `since`: OpenSSL's words or the
  /// server's alert, what the authority and the client certificate are; empty: nothing has.
  std::string failure_since(MonoTime since) const;

 private:
  struct Diary;
  TlsSetup(ServerConfig config, std::string name);
  std::string identities() const;

  const ServerConfig config_;  ///< only its certificates and key
  const std::string name_;
  std::shared_ptr<Diary> diary_;
};

}  // namespace trainyard::kube

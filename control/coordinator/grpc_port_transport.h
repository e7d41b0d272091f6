#pragma once

#include <memory>
#include <string>

#include "control/coordinator/control_transport.h"

namespace trainyard::control {

/// What a server shows of itself over TLS, in PEM.
struct TlsIdentity {
  std::string certificate;  ///< with those of intermediate authorities after it
  std::string key;          ///< secret

  bool operator==(const TlsIdentity&) const = default;
};

/// The coordinator's end in a cluster: a TCP port with TLS 1.2 or newer. Whoever connects is let
/// in; what an agent shows of itself is ServerEvent::credential. Thread-safe.
class GrpcPortTransport final : public ControlTransport {
 public:
  /// `address` as "0.0.0.0:9443"; port 0: any that is free. Nothing listens before show().
  explicit GrpcPortTransport(std::string address);

  /// Closes every stream. Waits up to a second for streams to end.
  ~GrpcPortTransport() override;

  /// The port it listens on; 0: it does not.
  int port() const;

  /// Listens, and shows this certificate from now on. Where it showed another, open streams end,
  /// and agents come back: once in weeks that is cheaper than two servers. Errors: kIo when it
  /// cannot listen, or the certificate or key cannot be used; nothing listens then until a later
  /// call.
  Status show(const TlsIdentity& identity);

  std::vector<ServerEvent> take(Duration timeout) override;
  void interrupt() override;
  Status send(ConnectionId connection, const coordination::ToAgent& message) override;
  void close(ConnectionId connection) override;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trainyard::control

#pragma once

#include <memory>
#include <string>

#include "common/log/log.h"
#include "control/coordinator/control_transport.h"
#include "control/front/front.h"

namespace trainyard::control {

/// The coordinator's end in a cluster: a TCP port with TLS 1.2 or newer, behind a Front. What an
/// agent shows of itself is ServerEvent::credential; before admit() of its stream a connection has
/// the front's bounds. Thread-safe.
class GrpcPortTransport final : public ControlTransport {
 public:
  struct Options {
    std::string address;  ///< as http::listen_at: ":9443", "127.0.0.1:0"
    FrontBounds bounds;
    /// What gRPC may take of memory, as far as it counts that; 0: no bound.
    int64_t memory_bytes = 0;
    Logger* logger = nullptr;  ///< optional; outlives this
  };

  /// Nothing listens before show().
  explicit GrpcPortTransport(Options options);

  /// Closes every stream. Waits up to a second for streams to end.
  ~GrpcPortTransport() override;

  /// The port it listens on; 0: it does not.
  int port() const;

  /// Listens, and shows this certificate from now on. Where it showed another, open streams end,
  /// and agents come back: once in weeks that is cheaper than two servers. Errors: as
  /// Front::listen; nothing listens then until a later call.
  Status show(const TlsIdentity& identity);

  /// It is known whose this stream is: its connection has no bounds any more.
  void admit(ConnectionId connection);

  /// Of the front that listens now; zeroes where none does.
  Front::Counts connections() const;

  std::vector<ServerEvent> take(Duration timeout) override;
  void interrupt() override;
  Status send(ConnectionId connection, const coordination::ToAgent& message) override;
  Status send_with_tail(ConnectionId connection, const coordination::ToAgent& message,
                        std::shared_ptr<const std::string> tail) override;
  void close(ConnectionId connection) override;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trainyard::control

#pragma once

#include <memory>
#include <string>

#include "control/coordinator/control_transport.h"

namespace trainyard::control {

/// The coordinator's end on one machine: a Unix socket. Thread-safe.
class GrpcTransport final : public ControlTransport {
 public:
  /// Listens on a Unix socket; a socket file left by a dead process is replaced. Whoever may enter
  /// the directory may connect: make it 0700.
  /// The path may be of any length (reachable_socket.h).
  /// Errors: kInvalidConfig for a file name that is too long; kIo when it cannot listen.
  static Result<std::unique_ptr<GrpcTransport>> listen_on_unix_socket(const std::string& path);

  /// Closes every stream and removes the socket. Waits up to a second for streams to end.
  ~GrpcTransport() override;

  /// What agents connect to: "unix:/path".
  const std::string& address() const;

  /// Whether the socket's file is still there and this transport's own.
  bool is_reachable() const;
  /// Makes the socket anew, where somebody has removed or replaced its file; streams that are open
  /// go on. The directory must be there. Errors: as listen_on_unix_socket; kUnavailable after
  /// kMaxListeners of them.
  Status listen_again();

  /// Every socket has a server of its own until the end: nobody removes one that often by mistake.
  static constexpr size_t kMaxListeners = 16;

  std::vector<ServerEvent> take(Duration timeout) override;
  void interrupt() override;
  Status send(ConnectionId connection, const coordination::ToAgent& message) override;
  Status send_with_tail(ConnectionId connection, const coordination::ToAgent& message,
                        std::shared_ptr<const std::string> tail) override;
  void close(ConnectionId connection) override;

 private:
  class Impl;
  explicit GrpcTransport(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace trainyard::control

#pragma once

#include <memory>

#include "control/coordinator/control_transport.h"

namespace trainyard::control {

/// The control stream inside one process: for tests of both ends (under the thread sanitizer too)
/// and for an agent that hosts its own coordinator. Thread-safe.
class MemoryTransport final : public ControlTransport {
 public:
  MemoryTransport();
  /// Closes every connection; channels that live on find no peer.
  ~MemoryTransport() override;

  /// A new agent's end, not open yet. May outlive the transport.
  std::unique_ptr<ControlChannel> make_channel();

  /// While unreachable, open() fails and what is open is closed: a coordinator that is away.
  void set_reachable(bool reachable);

  std::vector<ServerEvent> take(Duration timeout) override;
  void interrupt() override;
  Status send(ConnectionId connection, const coordination::ToAgent& message) override;
  void close(ConnectionId connection) override;

 private:
  struct Hub;
  class Channel;
  std::shared_ptr<Hub> hub_;  ///< shared with channels, which may outlive the transport
};

}  // namespace trainyard::control

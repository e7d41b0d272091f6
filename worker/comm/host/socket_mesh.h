#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "worker/comm/communicator.h"
#include "worker/comm/factory.h"
#include "worker/comm/host/connector.h"
#include "worker/comm/host/hub.h"
#include "worker/comm/host/socket.h"

namespace trainyard::comm {

class LifeProbe;

/// Connects the ranks of a group pairwise through their listeners: a control connection for each
/// pair, and beside it either a data connection (tcp) or one shared memory for the group (shm).
/// Lower global ranks connect to higher ones. The hub lives as long as this.
class SocketMesh final : public Connector {
 public:
  /// What carries the messages.
  enum class Data : uint8_t { kSockets, kMemory };

  static Result<std::shared_ptr<SocketMesh>> make(Data data, const Options& options,
                                                  Listener listener);

  Result<std::shared_ptr<Transport>> connect(const std::shared_ptr<Group>& group) override;

 private:
  using Deadline = std::chrono::steady_clock::time_point;
  /// Connections by member; invalid for the own one.
  struct Links {
    std::vector<UniqueFd> control;
    std::vector<UniqueFd> data;
  };

  SocketMesh(Data data, const Options& options, std::vector<SocketAddress> addresses,
             std::unique_ptr<Hub> hub);

  Result<Links> link(const GroupIdentity& identity, Deadline deadline);
  Status dial_higher(const GroupIdentity& identity, Deadline deadline, Links& links);
  /// The error of a wait for `rank`, whose process is gone.
  Error nobody_listens(const GroupIdentity& identity, LifeProbe& probe, int rank) const;
  Status await_lower(const GroupIdentity& identity, Deadline deadline, Links& links);
  Hello hello_of(const GroupIdentity& identity, ConnectionKind kind) const;
  int local_ranks(const GroupIdentity& identity) const;

  const Data data_;
  const HandshakeIdentity identity_;
  const std::vector<SocketAddress> addresses_;  ///< by global rank
  const std::vector<Endpoint> endpoints_;
  const std::unique_ptr<Hub> hub_;
};

}  // namespace trainyard::comm

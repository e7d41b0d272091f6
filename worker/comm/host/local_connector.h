#pragma once

#include <memory>

#include "worker/comm/host/connector.h"
#include "worker/comm/host/local_world.h"

namespace trainyard::comm {

struct LocalRoom;

/// Lets threads of one process meet in a LocalWorld.
class LocalConnector final : public Connector {
 public:
  explicit LocalConnector(std::shared_ptr<LocalWorld> world);
  Result<std::shared_ptr<Transport>> connect(const std::shared_ptr<Group>& group) override;

 private:
  /// The room of this group, made by whoever comes first.
  Result<std::shared_ptr<LocalRoom>> enter(const std::shared_ptr<Group>& group);

  const std::shared_ptr<LocalWorld> world_;
};

}  // namespace trainyard::comm

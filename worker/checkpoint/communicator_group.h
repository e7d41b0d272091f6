#pragma once

#include "worker/checkpoint/commit_group.h"
#include "worker/comm/communicator.h"

namespace trainyard::checkpoint {

/// A CommitGroup over a communicator. Give it a sub-group of its own (Communicator::sub_group), so
/// that commits never queue behind the gradients; its deadline bounds every call here.
class CommunicatorCommitGroup final : public CommitGroup {
 public:
  /// `communicator` is not owned and must outlive this object.
  explicit CommunicatorCommitGroup(comm::Communicator& communicator) : comm_(communicator) {}

  int rank() const override { return comm_.rank(); }
  int size() const override { return comm_.size(); }
  Result<std::vector<std::string>> gather(std::string own_record) override;
  Result<std::string> broadcast(std::string from_rank_0) override;
  Result<bool> any(bool failed) override;

 private:
  comm::Communicator& comm_;
};

}  // namespace trainyard::checkpoint

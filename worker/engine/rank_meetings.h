#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/error.h"
#include "worker/comm/communicator.h"
#include "worker/engine/pending_works.h"
#include "worker/model/ops/op.h"

namespace trainyard::engine {

/// How the ranks that share every layer, and those that share every sequence, exchange what an op
/// of parallelize() has made on each of them. They run the same passes in the same order. One
/// thread at a time; allocates nothing once it has seen as many sequences.
class RankMeetings {
 public:
  using Wait = PendingWorks::Wait;

  /// The groups are not owned; null: there are no other tensor ranks, or context ranks. The errors
  /// of all members are those of `wait`.
  RankMeetings(comm::StepCommunicator* tensor, comm::StepCommunicator* context, const Wait& wait);

  /// After a pass of the op: exchanges what it says and ends the pass.
  Status meet(const Op& op, OpPass pass, const OpArgs& args);

  /// Puts the slices that the tensor ranks have of a value, this rank's being args.own, together in
  /// `all`.
  Status gather(const OpArgs& args, const TensorView& all);

 private:
  void count(int64_t rows, int64_t columns);
  Status scatter(const OpArgs& args, int64_t columns, DType type);
  Status scatter_bits(const Op& op, OpPass pass, const OpArgs& args);
  Status scatter_sums(const Op& op, OpPass pass, const OpArgs& args);
  Status add_up(const Op& op, OpPass pass, const OpArgs& args);
  Status exchange_heads(const Op& op, OpPass pass, const OpArgs& args);
  Status hand_around(const Op& op, OpPass pass, const OpArgs& args);
  Status start_block(const Op& op, OpPass pass, const OpArgs& args, int64_t block,
                     std::span<std::byte> data);
  Status return_sums(const Op& op, OpPass pass, const OpArgs& args, const RingStep& own,
                     int64_t* received);

  comm::StepCommunicator* tensor_;
  comm::StepCommunicator* context_;
  Wait wait_;
  std::vector<int64_t> counts_;  ///< by tensor rank
  PendingWorks works_;
  std::array<PendingWorks, 2> blocks_;  ///< of a ring, by the buffer that they use
};

}  // namespace trainyard::engine

#pragma once

#include <map>
#include <memory>
#include <vector>

#include "worker/comm/communicator.h"
#include "worker/comm/host/connector.h"
#include "worker/comm/host/group.h"
#include "worker/comm/host/known_counts.h"
#include "worker/comm/host/stream.h"

namespace trainyard::comm {

/// The one Communicator: arguments checked and numbered here, run by the group's stream over
/// whatever transport the connector made.
class GroupCommunicator final : public Communicator {
 public:
  /// Meets the members. `connector` may be null for a group of one. `board` as for Group.
  static Result<std::unique_ptr<Communicator>> make(GroupIdentity identity,
                                                    std::shared_ptr<Connector> connector,
                                                    std::shared_ptr<WaitBoard> board = nullptr);
  ~GroupCommunicator() override;

  int rank() const override { return group_->identity().member; }
  int size() const override { return group_->identity().size(); }
  int64_t generation() const override { return group_->identity().generation; }

  WorkPtr all_reduce(std::span<std::byte> data, DType dtype, ReduceOp op) override;
  WorkPtr reduce_scatter(std::span<std::byte> data, std::span<const int64_t> counts, DType dtype,
                         ReduceOp op) override;
  WorkPtr all_gather(std::span<std::byte> data, std::span<const int64_t> counts,
                     DType dtype) override;
  WorkPtr broadcast(std::span<std::byte> data, int root) override;
  WorkPtr reduce(std::span<std::byte> data, DType dtype, ReduceOp op, int root) override;
  WorkPtr scatter(std::span<const std::byte> send, std::span<std::byte> receive,
                  std::span<const int64_t> counts, DType dtype, int root) override;
  WorkPtr gather(std::span<const std::byte> send, std::span<std::byte> receive,
                 std::span<const int64_t> counts, DType dtype, int root) override;
  using Communicator::all_to_all;
  WorkPtr all_to_all(std::span<const std::byte> send, std::span<const int64_t> send_counts,
                     std::span<std::byte> receive, std::span<const int64_t> receive_counts,
                     DType dtype) override;
  WorkPtr barrier() override;
  using Communicator::batch_point_to_point;
  WorkPtr batch_point_to_point(std::vector<PointToPoint> transfers,
                               const PointToPointOptions& options) override;
  using Communicator::sub_group;
  Result<std::unique_ptr<Communicator>> sub_group(std::span<const int> ranks, Waits waits) override;
  using Communicator::abort;
  void abort(const Error& reason, std::span<const int> lost_ranks) override;
  void observe(trace::SpanSink* sink, trace::Track track) override {
    stream_->observe(sink, track);
  }
  Counters counters() const override { return stream_->counters(); }
  std::vector<int> lost_ranks() const override;

 private:
  GroupCommunicator(std::shared_ptr<Group> group, std::shared_ptr<Connector> connector,
                    std::shared_ptr<Transport> transport);

  /// A work that failed, and with it the group: this rank's call cannot be what the others do.
  WorkPtr refuse(Operation op, const std::string& why);
  Signature next(Operation op, DType dtype, ReduceOp reduce, int64_t count, uint64_t detail);
  /// Why a call cannot be right; empty if it can.
  std::string mismatch_of(std::span<const std::byte> data, std::span<const int64_t> counts,
                          DType dtype) const;
  std::string bad_root(int root) const;
  std::string bad_elements(std::span<const std::byte> data, DType dtype) const;
  /// Of scatter and gather: `whole` is looked at on the root only.
  std::string bad_parts(std::span<const std::byte> whole, std::span<const std::byte> own,
                        std::span<const int64_t> counts, DType dtype, int root) const;

  const std::shared_ptr<Group> group_;
  const std::shared_ptr<Connector> connector_;
  const std::shared_ptr<Stream> stream_;
  uint64_t sequence_ = 0;
  KnownCounts known_counts_;
  std::map<std::vector<int>, uint64_t> sub_groups_;  ///< how often each was made
};

}  // namespace trainyard::comm

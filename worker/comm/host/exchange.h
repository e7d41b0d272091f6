#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "worker/comm/host/group.h"
#include "worker/comm/host/transport.h"

namespace trainyard::comm {

/// When an operation may end before it is complete, without harm to the group: only while nothing
/// of it has been sent or received.
struct Retreat {
  const std::atomic<bool>* cancelled = nullptr;  ///< set by who wants it back; then Group::wake()
  std::optional<std::chrono::milliseconds> patience;  ///< without any progress
};

/// Runs batches of messages over a transport: all peers and directions make progress together, the
/// wait is bounded by the group's deadline without progress, and a failure of the group ends it.
/// One batch at a time; counters may be read from any thread.
class Exchange {
 public:
  Exchange(std::shared_ptr<Group> group, std::shared_ptr<Transport> transport);

  /// Returns when every message is complete. `what` names the operation in errors. Errors: the
  /// group's failure, which every error here becomes, but for kAborted and kDeadline of a retreat.
  Status run(std::vector<Transfer>& batch, const Signature& what, const Retreat& retreat = {});

  int64_t bytes_sent() const { return bytes_sent_.load(std::memory_order_relaxed); }
  int64_t bytes_received() const { return bytes_received_.load(std::memory_order_relaxed); }

 private:
  using Instant = std::chrono::steady_clock::time_point;

  /// One pass over all lanes; true if anything moved.
  Result<bool> pass(std::vector<Transfer>& batch, const Signature& what);
  void link(std::vector<Transfer>& batch);
  Status idle(std::vector<Transfer>& batch, const Signature& what, const Retreat& retreat);
  /// Why an untouched batch is given up now; success to go on.
  Status retreats(const std::vector<Transfer>& batch, const Signature& what, const Retreat& retreat,
                  Instant::duration idle_for) const;
  Status silent(const std::vector<int>& awaited, const Signature& what);
  Status check_departed(std::vector<Transfer>& batch, const Signature& what);
  Error fail(Failure failure, const Signature& what);
  void end_stall();

  std::shared_ptr<Group> group_;
  std::shared_ptr<Transport> transport_;
  std::atomic<int64_t> bytes_sent_{0};
  std::atomic<int64_t> bytes_received_{0};

  std::vector<int>
      heads_;  ///< first unfinished message of each lane; lanes that are done are removed
  std::vector<int> awaited_;  ///< members that a stall waits for; kept for its memory
  std::vector<int> tails_;    ///< while linking: last message by lane
  std::vector<Transfer*> pending_;
  bool stalled_ = false;     ///< the group knows whom we wait for
  bool announced_ = false;   ///< and the peers too
  bool idle_known_ = false;  ///< idle_since_ is valid
  Instant idle_since_;
};

}  // namespace trainyard::comm

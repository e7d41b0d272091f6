#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <utility>

#include "common/base/clock.h"
#include "common/base/error.h"

namespace trainyard::cluster {

/// Calls in flight at once when all goes well. Enough to keep a server busy that answers within
/// 30 ms at the default 1,000 requests a second; far fewer than the 200 changes that an API server
/// works on at once (--max-mutating-requests-inflight), so that the Lease is renewed meanwhile.
inline constexpr int64_t kCallsAtOnce = 32;

/// How wide calls begin and become.
struct CallWidth {
  int64_t first = 1;
  int64_t most = kCallsAtOnce;
  /// How many there may be by now; looked at before every call, so that it may fall and rise
  /// meanwhile. One always goes on. Empty: `most`.
  std::function<int64_t()> share;
};

/// Calls `call` with 0 ... count - 1 in growing batches: `first`, twice, four times as many ...
/// and, once they are `most` wide, the rest as a stream of that width. Begun with one, what the
/// server refuses is found out with one call, not with all of them. After an error no call begins;
/// returns when none is running: the first error. Source: slowStartBatch of Kubernetes' job
/// controller.
Status slow_start(int64_t count, CallWidth width, const std::function<Status(int64_t)>& call);

/// slow_start that remembers how the last calls went: it begins as wide as they ended where all of
/// them went well, and with one where any did not. So a server that is well is not asked again for
/// each part of a large gang whether it is. Runs at the same time share the calls, so that ten
/// large jobs ask no more of the server than one; and beside a small job's calls a large run stands
/// aside, because a call waits for all that were there before it. Thread-safe.
class PacedCalls {
 public:
  /// Runs and jobs of more pods than that are large.
  static constexpr int64_t kLarge = 64;
  /// The calls of a large run beside a small job's.
  static constexpr int64_t kAside = 2;
  /// So long after a small job's call its next one is expected.
  static constexpr std::chrono::milliseconds kNextCall{100};

  /// While it lives, and kNextCall longer, a small job asks something of the server.
  class Precedence {
   public:
    Precedence(Precedence&& other) noexcept : calls_(std::exchange(other.calls_, nullptr)) {}
    Precedence(const Precedence&) = delete;
    Precedence& operator=(const Precedence&) = delete;
    Precedence& operator=(Precedence&&) = delete;
    ~Precedence();

   private:
    friend class PacedCalls;
    explicit Precedence(PacedCalls* calls) : calls_(calls) {}
    PacedCalls* calls_;  ///< nullptr: of a large job
  };

  /// `most` calls at once in all run()s together, and one in each. `clock` outlives this.
  PacedCalls(int64_t most, const Clock& clock) : most_(most), clock_(clock) {}

  /// As slow_start.
  Status run(int64_t count, const std::function<Status(int64_t)>& call);
  /// To be held while a job of `pods` pods is waited for by a single call.
  [[nodiscard]] Precedence precede(int64_t pods);
  /// A call was answered by a refusal: the next run() begins with one.
  void refused() { ++refusals_; }

 private:
  int64_t share(bool large) const;

  const int64_t most_;
  const Clock& clock_;
  std::atomic<int64_t> runs_ = 0;                         ///< under way
  std::atomic<int64_t> preceding_ = 0;                    ///< small jobs' calls under way
  std::atomic<MonoTime> last_preceded_{MonoTime::min()};  ///< the end of the last one
  std::atomic<int64_t> first_ = 1;
  std::atomic<int64_t> refusals_ = 0;
};

}  // namespace trainyard::cluster

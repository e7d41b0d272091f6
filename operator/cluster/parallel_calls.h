#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

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
/// large jobs ask no more of the server than one. Thread-safe.
class PacedCalls {
 public:
  /// `most` calls at once in all run()s together, and one in each.
  explicit PacedCalls(int64_t most) : most_(most) {}

  /// As slow_start.
  Status run(int64_t count, const std::function<Status(int64_t)>& call);
  /// A call was answered by a refusal: the next run() begins with one.
  void refused() { ++refusals_; }

 private:
  const int64_t most_;
  std::atomic<int64_t> runs_ = 0;  ///< under way
  std::atomic<int64_t> first_ = 1;
  std::atomic<int64_t> refusals_ = 0;
};

}  // namespace trainyard::cluster

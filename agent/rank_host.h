#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/error.h"
#include "common/contract/rank_counters.h"

namespace trainyard::coordination {
class RankProgress;
}

namespace trainyard::agent {

/// One rank to start; what it needs to know beside what all ranks of the node share.
struct RankLaunch {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  int node_rank = 0;
  int node_index = 0;
  int node_count = 1;
  int64_t generation = 0;
};

/// What errors of GPUs say about a rank that has failed.
struct GpuFailure {
  std::string words;      ///< one line; empty: no errors
  bool hardware = false;  ///< a GPU, its memory or its links are at fault, not the program
};

/// How a rank process ended.
struct RankEnd {
  int exit_code = 0;           ///< meaningful when signal is 0
  int signal = 0;              ///< the signal that ended it
  bool out_of_memory = false;  ///< that was the kernel's, for want of memory
  GpuFailure gpu;              ///< errors of its GPU while it ran
};

/// What is said of a rank whose end was out_of_memory.
inline constexpr char kOutOfMemory[] =
    "killed by the kernel because memory ran out; use smaller micro-batches, fewer ranks here or "
    "more memory";

/// The rank processes of a node, as the supervisor handles them; the one seam between its logic
/// and the operating system. Ranks are named by their place on the node (local rank).
class RankHost {
 public:
  virtual ~RankHost() = default;

  /// Starts a rank. Errors: kIo, kInvalidConfig (no program, or none that can run).
  virtual Status start(const RankLaunch& launch) = 0;
  /// Kills what the ranks, which have all ended, have left behind, and waits for nothing. Once that
  /// is gone, forgets the ranks: the next rank that is started has local rank 0 again. Errors:
  /// kUnavailable where something was still there; nothing is forgotten then, and the call is to be
  /// repeated.
  virtual Status clear() = 0;
  /// Ranks that have not ended and what ranks have left behind, for people: "7 (python3), 9 (sh)".
  virtual std::string left() const = 0;
  /// Process id of a started rank.
  virtual int64_t pid(int local_rank) const = 0;
  /// Queues a line for the rank's socket; dropped when the rank is gone.
  virtual void send(int local_rank, const std::string& line) = 0;
  /// Nothing happens when the rank is gone.
  virtual void signal(int local_rank, int signal_number) = 0;
  /// One reading of its progress page; all but `rank`.
  virtual void read_progress(int local_rank, coordination::RankProgress& progress) const = 0;
  /// One reading of its counters, and of the memory that the process occupies.
  virtual contract::RankCountersReading read_counters(int local_rank) const = 0;
  /// The newest lines it printed, printable and bounded.
  virtual std::vector<std::string> last_lines(int local_rank) const = 0;
};

}  // namespace trainyard::agent

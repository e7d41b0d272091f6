#pragma once

#include <csignal>
#include <string>
#include <utility>
#include <vector>

#include "agent/rank_host.h"
#include "common/proto/coordination.pb.h"

namespace trainyard::testing_support {

/// Ranks that only write down what is done to them; a test plays their part.
class FakeRankHost final : public agent::RankHost {
 public:
  struct Rank {
    agent::RankLaunch launch;
    std::vector<std::string> received;  ///< lines sent to it
    std::vector<int> signals;
    coordination::RankProgress progress;
    std::vector<std::string> last_lines;
    contract::RankCountersReading counters;
    bool ended = false;  ///< for who keeps count
  };

  Status start(const agent::RankLaunch& launch) override {
    if (fail_start) return Error{ErrorCode::kNotFound, "execute /no/worker: no such file"};
    ranks.push_back({launch, {}, {}, {}, {}, {}, false});
    ranks.back().progress.set_checkpoint_step(-1);
    ranks.back().progress.set_restored_step(-1);
    return {};
  }
  Status clear() override {
    ++clears;
    if (leaves_behind) return Error{ErrorCode::kUnavailable, "process 7 (dataloader)"};
    ++cleared;
    ranks.clear();
    return {};
  }
  std::string left() const override { return "7 (dataloader)"; }
  int64_t pid(int local_rank) const override { return 1000 + local_rank; }
  void send(int local_rank, const std::string& line) override {
    at(local_rank).received.push_back(line);
  }
  void signal(int local_rank, int number) override { at(local_rank).signals.push_back(number); }
  void read_progress(int local_rank, coordination::RankProgress& progress) const override {
    const int rank = progress.rank();
    progress = ranks[static_cast<size_t>(local_rank)].progress;
    progress.set_rank(rank);
  }
  contract::RankCountersReading read_counters(int local_rank) const override {
    return ranks[static_cast<size_t>(local_rank)].counters;
  }
  std::vector<std::string> last_lines(int local_rank) const override {
    return ranks[static_cast<size_t>(local_rank)].last_lines;
  }
  Rank& at(int local_rank) { return ranks[static_cast<size_t>(local_rank)]; }

  std::vector<Rank> ranks;  ///< by local rank
  bool fail_start = false;
  bool leaves_behind = false;  ///< what cannot be ended
  int clears = 0;              ///< tries
  int cleared = 0;
};

}  // namespace trainyard::testing_support

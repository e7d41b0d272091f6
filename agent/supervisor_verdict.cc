// How the agent ends: which rank explains the others, and what is said of it.
#include <algorithm>
#include <utility>

#include "agent/supervisor.h"
#include "common/proto/coordination.pb.h"
#include "common/text/readable.h"
#include "common/worker_contract.h"
#include "control/container_exit.h"

namespace trainyard::agent {
namespace {

using contract::kExitDone;
using contract::kExitPeerLost;
using contract::kExitRetry;
using contract::kExitTerminatedAfterCheckpoint;

constexpr size_t kMaxMessageBytes = 2048;
constexpr char kOomKilled[] = "OOMKilled";  // as the kubelet says it
// A shell's and a loader's codes for what they cannot start (POSIX sh, 2.8.2).
constexpr int kExitCannotExecute = 126;
constexpr int kExitNotFound = 127;

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines)
    text += (text.empty() ? "" : "\n") + line;
  // The end of what a rank said explains it best.
  if (text.size() <= kMaxMessageBytes) return text;
  return text.substr(text.find('\n', text.size() - kMaxMessageBytes) + 1);
}

bool ended_well(const RankEnd& end) {
  return end.signal == 0 &&
         (end.exit_code == kExitDone || end.exit_code == kExitTerminatedAfterCheckpoint);
}

bool only_followed_a_peer(const RankEnd& end) {
  return end.signal == 0 && end.exit_code == kExitPeerLost;
}

}  // namespace

std::optional<int64_t> Supervisor::newest_step() const {
  std::optional<int64_t> newest;
  for (size_t i = 0; options_.is_engine() && i < ranks_.size(); ++i) {
    const coordination::RankProgress progress = progress_of(ranks_[i]);
    if (progress.restored_step() < 0) continue;
    newest = std::max(newest.value_or(progress.step()), progress.step());
  }
  return newest;
}

coordination::RankProgress Supervisor::progress_of(const Rank& rank) const {
  coordination::RankProgress progress;
  host_.read_progress(static_cast<int>(&rank - ranks_.data()), progress);
  return progress;
}

bool Supervisor::ended_as_asked(const Rank& rank) const {
  const RankEnd& end = *rank.end;
  if (ended_well(end)) return true;
  if (ending_ != Ending::kStopped || !options_.is_engine() || end.signal != 0) return false;
  // A rank that has no state yet has nothing to save: asked to stop it gives up waiting for its
  // peers, or finds that they have.
  const bool gave_up = end.exit_code == kExitRetry || end.exit_code == kExitPeerLost;
  return gave_up && progress_of(rank).restored_step() < 0;
}

const Supervisor::Rank* Supervisor::primary_failure() const {
  const Rank* primary = nullptr;
  for (const Rank& rank : ranks_) {
    if (!rank.end || ended_as_asked(rank)) continue;
    const bool followed = rank.killed_by_us && ending_ == Ending::kFailed && !rank.failing;
    if (followed) continue;
    const auto key = [](const Rank& r) {
      return std::pair(only_followed_a_peer(*r.end), r.end_order);
    };
    if (primary == nullptr || key(rank) < key(*primary)) primary = &rank;
  }
  return primary;
}

const Supervisor::Rank* Supervisor::own_failure() const {
  const Rank* primary = primary_failure();
  return primary == nullptr || only_followed_a_peer(*primary->end) ? nullptr : primary;
}

/// A GPU that has failed explains the ranks of its neighbours, too: they waited for its rank, which
/// may have ended last, by our own signal.
GpuFailure Supervisor::gpu_failure(const Rank& rank) const {
  if (rank.end->gpu.hardware) return rank.end->gpu;
  const auto of_neighbour = std::find_if(ranks_.begin(), ranks_.end(), [](const Rank& other) {
    return other.end && other.end->gpu.hardware;
  });
  return of_neighbour == ranks_.end() ? rank.end->gpu : of_neighbour->end->gpu;
}

AgentExit Supervisor::verdict_of_rank(const Rank& rank) const {
  const int local_rank = static_cast<int>(&rank - ranks_.data());
  AgentExit exit;
  exit.rank = rank.rank;
  // Whatever ended it while it cleaned up.
  const bool was_failing = rank.failing && rank.end->signal != 0;
  exit.exit_code = was_failing             ? rank.failing->exit_code
                   : rank.end->signal != 0 ? 128 + rank.end->signal
                                           : rank.end->exit_code;
  if (rank.end->signal != 0 && !was_failing) exit.signal = rank.end->signal;
  exit.reason = exit.exit_code == kExitDone ? "Completed" : "Error";
  if (rank.end->out_of_memory && !was_failing) {
    exit.reason = kOomKilled;
    exit.message = kOutOfMemory;
    return exit;
  }
  std::vector<std::string> words = readable_lines(host_.last_lines(local_rank));
  if (was_failing) words.push_back(rank.failing->message);
  const GpuFailure gpu = gpu_failure(rank);
  if (!gpu.words.empty()) words.push_back(gpu.words);
  if (gpu.hardware) exit.reason = control::kGpuFailed;
  exit.message = joined(words);
  if (options_.is_engine() && !rank.listening) {
    // It never spoke the contract's first word: no rank of ours, or one that cannot even load.
    const bool unusable = rank.end->signal == 0 &&
                          (exit.exit_code == kExitDone || exit.exit_code == kExitCannotExecute ||
                           exit.exit_code == kExitNotFound);
    if (unusable) {
      exit.message = options_.worker.string() + " is no worker that can run here: it ended with " +
                     std::to_string(exit.exit_code) + " before its first message" +
                     (exit.message.empty() ? "" : ": " + exit.message);
      exit.exit_code = contract::kExitBadConfig;
      exit.reason = "Error";
    }
  }
  if (exit.message.empty() && exit.exit_code != kExitDone && !exit.signal) {
    const bool silent = host_.last_lines(local_rank).empty();
    const bool asked = options_.is_engine() && exit.exit_code == kExitTerminatedAfterCheckpoint;
    exit.message = "rank " + std::to_string(rank.rank) +
                   (asked    ? " was asked to end by a SIGTERM from outside, and did"
                    : silent ? " printed nothing"
                             : " gave no reason");
  }
  return exit;
}

AgentExit Supervisor::verdict() const {
  const Rank* primary = primary_failure();
  switch (ending_) {
    case Ending::kNone:
      for (const Rank& rank : ranks_) {
        if (!rank.listening) return verdict_of_rank(rank);
      }
      break;  // every rank ended with 0
    case Ending::kJoining:
    case Ending::kFenced:
    case Ending::kOrphaned:
      // The pod's record says what the job was restarted for, however soon the fence came.
      if (failed_before_fence_ != nullptr) return verdict_of_rank(*failed_before_fence_);
      return {kExitRetry, std::nullopt, std::nullopt, "Error", ending_reason_};
    case Ending::kFailed: {
      if (primary != nullptr) return verdict_of_rank(*primary);
      // Ended by somebody's SIGTERM: no failure of its own, but no completion either.
      for (const Rank& rank : ranks_) {
        if (rank.end->exit_code != kExitDone) return verdict_of_rank(rank);
      }
      break;
    }
    case Ending::kStopped: {
      if (primary != nullptr) return verdict_of_rank(*primary);
      const bool completed =
          !ranks_.empty() && std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) {
            return rank.end->exit_code == kExitDone;
          });
      if (completed) break;
      return {kExitTerminatedAfterCheckpoint, std::nullopt, std::nullopt, "Error", ending_reason_};
    }
  }
  return {};
}

}  // namespace trainyard::agent

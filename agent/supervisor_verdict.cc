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

bool Supervisor::outlasted_others(const Rank& rank) const {
  return rank.asked && rank.killed_by_us && ending_ == Ending::kFailed;
}

bool Supervisor::ended_as_asked(const Rank& rank) const {
  const RankEnd& end = *rank.end;
  if (ended_well(end)) return !rank.failing;
  if (outlasted_others(rank)) return true;
  if (ending_ != Ending::kStopped || !options_.is_engine() || end.signal != 0) return false;
  // A rank that has no state yet has nothing to save: asked to stop it gives up waiting for its
  // peers, or finds that they have.
  const bool gave_up = end.exit_code == kExitRetry || end.exit_code == kExitPeerLost;
  return gave_up && progress_of(rank).restored_step() < 0;
}

const Supervisor::Rank* Supervisor::first_failing() const {
  const Rank* first = nullptr;
  for (const Rank& rank : ranks_) {
    if (rank.failing && (first == nullptr || rank.end_order < first->end_order)) first = &rank;
  }
  return first;
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

const Supervisor::Rank* Supervisor::deciding_rank() const {
  if (const Rank* primary = primary_failure()) return primary;
  // Ended by somebody's SIGTERM: no failure of its own, but no completion either.
  const Rank* ended = nullptr;
  for (const Rank& rank : ranks_) {
    const bool explains = ended == nullptr || (rank.asked && !ended->asked);
    const bool is_done = !rank.end || (rank.end->signal == 0 && rank.end->exit_code == kExitDone);
    const bool followed = rank.killed_by_us && !outlasted_others(rank);
    if (!is_done && !followed && explains) ended = &rank;
  }
  return ended;
}

const Supervisor::Rank* Supervisor::own_failure() const {
  const Rank* primary = primary_failure();
  return primary == nullptr || only_followed_a_peer(*primary->end) ? nullptr : primary;
}

/// A GPU that has failed explains the ranks of its neighbours, too: they waited for its rank, which
/// may have ended last, by our own signal.
GpuFailure Supervisor::gpu_failure(const Rank& rank) const {
  const GpuFailure own = end_of(rank).gpu;
  if (own.hardware) return own;
  const auto of_neighbour = std::find_if(ranks_.begin(), ranks_.end(), [](const Rank& other) {
    return other.end && other.end->gpu.hardware;
  });
  return of_neighbour == ranks_.end() ? own : of_neighbour->end->gpu;
}

AgentExit Supervisor::verdict_of_rank(const Rank& rank) const {
  const int local_rank = static_cast<int>(&rank - ranks_.data());
  AgentExit exit;
  exit.rank = rank.rank;
  RankEnd end = end_of(rank);
  if (outlasted_others(rank)) end = {.exit_code = kExitTerminatedAfterCheckpoint};
  // A rank that is killed, or goes astray, while it cleans up failed before that.
  const bool was_failing = rank.failing && (end.signal != 0 || end.exit_code == kExitDone);
  exit.exit_code = was_failing       ? rank.failing->exit_code
                   : end.signal != 0 ? 128 + end.signal
                                     : end.exit_code;
  if (end.signal != 0 && !was_failing) exit.signal = end.signal;
  const bool as_asked = end.signal == 0 && (end.exit_code == kExitTerminatedAfterCheckpoint ||
                                            (rank.asked && end.exit_code == kExitRetry));
  if (options_.is_engine() && as_asked) exit.asked = rank.asked;
  exit.reason = exit.exit_code == kExitDone ? "Completed" : "Error";
  if (end.out_of_memory && !was_failing) {
    exit.reason = kOomKilled;
    exit.message = kOutOfMemory;
    return exit;
  }
  std::vector<std::string> words = readable_lines(host_.last_lines(local_rank));
  if (exit.asked.value_or(false)) {
    words.push_back("rank " + std::to_string(rank.rank) +
                    " was asked to end by a SIGTERM from outside");
  }
  const bool is_said = was_failing && !words.empty() &&
                       words.back().find(rank.failing->message) != std::string::npos;
  if (was_failing && !is_said) words.push_back(rank.failing->message);
  const GpuFailure gpu = gpu_failure(rank);
  if (!gpu.words.empty()) words.push_back(gpu.words);
  if (gpu.hardware) exit.reason = control::kGpuFailed;
  exit.message = joined(words);
  if (options_.is_engine() && !rank.listening) {
    // It never spoke the contract's first word: no rank of ours, or one that cannot even load.
    const bool unusable =
        end.signal == 0 && (exit.exit_code == kExitDone || exit.exit_code == kExitCannotExecute ||
                            exit.exit_code == kExitNotFound);
    if (unusable) {
      exit.message = options_.worker.string() +
                     " is not a worker that can run here: it ended with " +
                     std::to_string(exit.exit_code) + " before its first message" +
                     (exit.message.empty() ? "" : ": " + exit.message);
      exit.exit_code = contract::kExitBadConfig;
      exit.reason = "Error";
    }
  }
  if (exit.message.empty() && exit.exit_code != kExitDone && !exit.signal) {
    const bool silent = host_.last_lines(local_rank).empty();
    exit.message = "rank " + std::to_string(rank.rank) +
                   (exit.asked ? " ended with a rank that was asked to end"
                    : silent   ? " printed nothing"
                               : " gave no reason");
  }
  return exit;
}

RankEnd Supervisor::end_of(const Rank& rank) {
  return rank.end.value_or(RankEnd{.signal = SIGKILL});
}

void Supervisor::tell_exit(Rank& rank, Verdict verdict) {
  const auto local_rank = static_cast<int>(&rank - ranks_.data());
  rank.explained |= verdict == Verdict::kTold;
  coordination::FromAgent message;
  coordination::RankExited& exited = *message.mutable_rank_exited();
  const RankEnd end = end_of(rank);
  exited.set_rank(rank.rank);
  exited.set_exit_code(end.exit_code);
  exited.set_signal(end.signal);
  exited.set_expected(verdict == Verdict::kNone);
  exited.set_pid(host_.pid(local_rank));
  for (std::string& line : host_.last_lines(local_rank))
    exited.add_last_lines(std::move(line));
  if (end.out_of_memory) exited.add_last_lines(kOutOfMemory);
  if (verdict == Verdict::kTold) {
    const AgentExit explained = verdict_of_rank(rank);
    coordination::RankVerdict& told = *exited.mutable_verdict();
    told.set_exit_code(explained.exit_code);
    told.set_signal(explained.signal.value_or(0));
    told.set_reason(explained.reason);
    told.set_message(explained.message);
    if (explained.asked) told.set_asked(*explained.asked);
    if (const auto step = newest_step()) told.set_last_step(*step);
  }
  if (rank.end) {
    logger_.info("rank ended",
                 {{"rank", rank.rank}, {"exit_code", end.exit_code}, {"signal", end.signal}});
  }
  send(message);
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
      const Rank* const decides = deciding_rank();
      if (decides != nullptr) return verdict_of_rank(*decides);
      break;
    }
    case Ending::kStopped: {
      if (primary != nullptr) return verdict_of_rank(*primary);
      const bool completed =
          !ranks_.empty() && std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) {
            return rank.end->exit_code == kExitDone;
          });
      if (completed) break;
      AgentExit stopped{kExitTerminatedAfterCheckpoint, {}, {}, "Error", ending_reason_, {}, {}};
      if (options_.is_engine()) stopped.asked = asked_;
      return stopped;
    }
  }
  return {};
}

}  // namespace trainyard::agent

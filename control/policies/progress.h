#pragma once

#include <optional>
#include <string>

#include "common/api/training_job.h"
#include "common/base/time.h"
#include "control/facts.h"

/// What counts as progress, and as its absence. Pure.
namespace trainyard::control::policies {

/// Progress goes into status at most this often, of many jobs together at most so often a second;
/// but no job's waits longer than the longest.
inline constexpr std::chrono::seconds kProgressPeriod{5};
inline constexpr std::chrono::seconds kLongestProgressPeriod{60};
inline constexpr int64_t kProgressWritesPerSecond = 10;

/// How often the progress of each of so many jobs is written.
Duration progress_period_of(int64_t jobs);

/// What an agent that has been silent for longer once said of its ranks is no news of them: then it
/// is judged, not they (liveness.h). A multiple of the interval of heartbeats.
inline constexpr std::chrono::seconds kStaleNews{1};

/// clamp(stallFactor x p99 step time, minStallSeconds, maxStallSeconds); the maximum while no step
/// time is known.
Duration stall_bound(const api::ProgressPolicy& policy, const StreamFacts& facts);

/// How much of the time from `since` to `now` the coordinator listened.
Duration listened_since(const StreamFacts& facts, Time since, Time now);

/// When the lowest step of all ranks moved last in this generation; nullopt before every rank has
/// made one.
std::optional<Time> min_step_moved_at(const StreamFacts& facts);

/// How long ranks have made no step, and how long they may: the stall bound in training,
/// maxStallSeconds while they evaluate or write a checkpoint.
struct Standstill {
  Duration still;
  Duration bound;
};

/// That of the ranks which connected members tell of; nullopt where not each of these has made a
/// step yet, where there is none, and where they are done.
std::optional<Standstill> standstill_of_connected(const api::ProgressPolicy& policy,
                                                  const StreamFacts& facts, Time now);

/// The newest step any rank completed in this generation; nullopt where none is known.
std::optional<int64_t> last_step_seen(const StreamFacts& facts);

struct StallInput {
  const api::ProgressPolicy* policy = nullptr;
  const StreamFacts* facts = nullptr;
  int64_t generation = 0;
  std::optional<Time> scheduled_at;  ///< when the gang was placed; nullopt: not yet
  bool all_ready = false;
  Time now;
};

struct Stall {
  enum class Kind {
    kNone,
    kStartup,    ///< no first step within startupTimeoutSeconds
    kNoStep,     ///< steps stand still, ranks are alive
    kHeartbeat,  ///< the rank that lags has not begun an instruction either
  };
  Kind kind = Kind::kNone;
  std::optional<int> rank;  ///< the first that did not arrive; peers that wait for it are not
  std::string message;
  std::optional<Duration> look_again;
  bool is_known = true;  ///< false: nobody tells of the rank to blame, and what was told stays
};

/// Judges the whole job; never a rank of which nobody tells (kStaleNews). Only training counts
/// against the stall bound; restoring, evaluating and checkpointing have maxStallSeconds, or
/// startupTimeoutSeconds before the first step. A process that somebody has stopped starts nothing:
/// it has maxStallSeconds then, too. A program of its own, whose ranks tell of no steps, has only
/// to start them. Startup is counted from when the coordinator listens at the earliest.
Stall judge_stall(const StallInput& input);

/// The progress to show: that of the ranks that members tell of at present (kStaleNews), the least
/// of them; where nobody tells of any, that of all as they were last; `shown` where no rank of the
/// generation has reported. Until the ranks train again after a restart, `shown` stays, under their
/// new phase. `world_size`: ranks of the generation; 0 where numProcPerNode is auto: those that
/// have reported. `stages`: of the pipeline. Stages cost differently, so that the slowest rank is
/// that which differs most from its own stage's fastest; none where each stage has one rank.
std::optional<api::ProgressStatus> progress_of(const StreamFacts& facts,
                                               const std::optional<api::ProgressStatus>& shown,
                                               int64_t world_size, int64_t stages);

/// Whether `next` is worth a write of its own after `written`.
bool is_due(const std::optional<api::ProgressStatus>& written, const api::ProgressStatus& next,
            Time now, Duration period);
/// The same of a newer checkpoint.
bool is_due(const std::optional<api::CheckpointStatus>& written, Time now, Duration period);

}  // namespace trainyard::control::policies

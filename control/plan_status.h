#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "common/api/training_job.h"
#include "common/base/time.h"
#include "control/facts.h"
#include "control/membership.h"
#include "control/policies/restart.h"
#include "control/policies/schedule.h"

/// The parts of plan that write a status down: generations, attempts, counts, conditions. Pure.
namespace trainyard::control {

/// Opens `generation` at `target` nodes: membership, which keeps its image, and its attempt.
void open_generation(api::TrainingJobStatus& status, const api::ObjectMeta& metadata,
                     const api::TrainingJobSpec& spec, int64_t generation, int64_t target,
                     Time now);

/// How a generation ended.
struct AttemptEnd {
  const policies::Loss* cause = nullptr;  ///< nullptr: it was stopped, not lost
  std::string reason;                     ///< of the stop, without a cause
  std::optional<int64_t> last_step;       ///< newest step seen
  bool requested = false;                 ///< of a change of size: by an edit of the spec
  bool in_place = false;                  ///< the pod of the cause goes on
};

/// Ends the open attempt of the current generation.
void close_attempt(api::TrainingJobStatus& status, const AttemptEnd& end, Time now);

/// The ended attempt of the current generation came further than was known when it was ended.
void note_last_step(api::TrainingJobStatus& status, std::optional<int64_t> last_step);

/// Adds an ended attempt for another pod that the same restart replaces.
void note_further_loss(api::TrainingJobStatus& status, const policies::Loss& loss, Time now);

/// What the control stream says that status keeps: where the generation resumed, and so how many
/// steps the ones before it lost; the newest committed checkpoint.
void note_facts(api::TrainingJobStatus& status, const StreamFacts& facts);

using PodUids = std::unordered_set<std::string_view>;

/// Counts pods into status.nodes, roles and selector. Those in `without_ranks` do not count as
/// ready, whatever their agents say.
void count_pods(api::TrainingJobStatus& status, const api::ObjectMeta& metadata,
                const PodSets& sets, const PodUids& without_ranks);

/// Whether every node of the generation is ready or has ended well, of status.nodes, and what keeps
/// pods from it; `ranks_run`: as in GenerationLook.
void describe_running(api::TrainingJobStatus& status, const policies::Gang& gang, bool ranks_run,
                      Time now);

/// The wait between a restart and the pods of its generation.
struct BackOff {
  Time ends;
  Duration length{0};
};

/// That of the restart which is not running again yet, also where it is over; nullopt: none. It
/// stands from when the generation began, so that what is told of it stays true.
std::optional<BackOff> back_off_of(const api::TrainingJobStatus& status,
                                   const api::TrainingJobSpec& spec);

/// Value of status.progress.phase while a restart waits.
inline constexpr char kBackOff[] = "BackOff";

/// Value of status.progress.phase after a restart, before a rank has told its own.
std::string phase_before_ranks(const api::TrainingJobStatus& status,
                               const api::TrainingJobSpec& spec, Time now);

/// What else a look has shown of a generation.
struct GenerationLook {
  bool ranks_run = true;          ///< pods that are ready are running
  bool spares_exhausted = false;  ///< no spare stands ready, and none is about to
};

/// Conditions Scheduled, Running, Restarting, Resizing and Degraded of a generation that is to run.
void describe_generation(api::TrainingJobStatus& status, const api::TrainingJobSpec& spec,
                         const policies::Gang& gang, const GenerationLook& look, Time now);

/// Condition CheckpointStale; returns when it has to be looked at again.
std::optional<Duration> describe_checkpoint_age(api::TrainingJobStatus& status,
                                                const api::TrainingJobSpec& spec, Time now);

/// Sets the conditions of a running generation to False: it is over, and another follows. Scheduled
/// stays where `keeps_pods`: the next generation runs in the same pods.
void clear_running_conditions(api::TrainingJobStatus& status, std::string_view message, Time now,
                              bool keeps_pods = false);

/// Likewise where none follows for now. What was False already says why with this reason, too: no
/// pod is waited for.
void end_running_conditions(api::TrainingJobStatus& status, std::string_view reason,
                            std::string_view message, Time now);

/// The job goes on: what was False because it was suspended is so no more for that reason.
void note_resumption(api::TrainingJobStatus& status, Time now);

/// "pod a-0-x container trainer on node n: exit code 70: last lines", of which at most
/// `words_bytes` are told.
std::string sentence_of(const policies::Loss& loss,
                        int64_t words_bytes = api::kMaxNewestAttemptMessage);

}  // namespace trainyard::control

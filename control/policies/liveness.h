#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/api/training_job.h"
#include "common/base/time.h"
#include "control/facts.h"
#include "control/observed.h"

/// When a silent member counts as lost. Pure.
/// A lost stream alone proves nothing, because the fault may be ours (concepts/control-stream.md).
namespace trainyard::control::policies {

/// A stream that is gone for less than this is reconnecting.
inline constexpr std::chrono::seconds kStreamGrace{3};
/// More than half of all streams lost within kMassLossWindow: nobody is lost for kMassLossTruce,
/// because it may be our own network (not where all are on one machine).
inline constexpr std::chrono::seconds kMassLossWindow{2};
inline constexpr std::chrono::seconds kMassLossTruce{60};

/// What is told of each pod, by its UID: at one look the facts of thousands are asked for. Keys and
/// values are views of the facts.
using MembersByPod = std::unordered_map<std::string_view, const MemberFact*>;
MembersByPod members_by_pod(const StreamFacts& facts);

/// Whether all ranks of the facts' generation have met. A coordinator that has not heard of every
/// agent learns it from a rank that has got further.
bool have_met(const StreamFacts& facts);

struct LostMember {
  const ObservedPod* pod = nullptr;
  std::string message;  ///< the evidence
};

struct LivenessInput {
  const std::vector<const ObservedPod*>* members = nullptr;
  const StreamFacts* facts = nullptr;
  int64_t generation = 0;
  const api::ProgressPolicy* policy = nullptr;
  Time now;
  /// The generation has run as a whole: each of its agents has had a stream.
  bool ran = false;
  std::optional<Time> scheduled_at;  ///< when the gang was placed; nullopt: not yet
};

struct Liveness {
  std::vector<LostMember> lost;
  /// When silence will have lasted long enough to be judged.
  std::optional<Duration> look_again;
  bool truce = false;  ///< nobody is judged: too many went silent at once
  /// Others are silent for less than kStreamGrace, and those that are lost for less than twice as
  /// long: where nothing else has failed, these wait for those.
  bool waits = false;
};

struct JoiningInput {
  const std::vector<const ObservedPod*>* members = nullptr;
  const StreamFacts* facts = nullptr;
  int64_t generation = 0;
  Time began;        ///< of the generation
  Duration timeout;  ///< failurePolicy.joinTimeoutSeconds; kStreamGrace comes to it
  Time now;
};

/// Returns the members that a restart has kept and whose agents have not joined the generation in
/// time, or have been silent for as long since they joined; nobody once its ranks have met. An
/// agent that has never connected has kReconnectTime at least from the start of its container, of
/// the generation and of the coordinator, and kMassLossTruce where more than half of the kept ones
/// have never connected. With the first of them, kept members without a stream are lost, too.
Liveness judge_joining(const JoiningInput& input);

/// Members whose stream is gone longer than kStreamGrace and that a second sign speaks against: a
/// peer's report, a node not ready, or steps that stand still for as long as they may. Ranks train
/// in step, so where one is gone those of the connected members stand still too; what the silent
/// one last told of its own is no news of them. Where nobody is connected, and on one machine,
/// where no network can make agents seem lost, the steps that all have told of count. Of a
/// generation that ran also members that have not come back to a new coordinator, and whose nodes
/// are not ready, or, on one machine, of one that is older than the coordinator, not within the
/// stall bound: a stopped agent.
Liveness judge_liveness(const LivenessInput& input);

}  // namespace trainyard::control::policies

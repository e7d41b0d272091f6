#include "control/policies/schedule.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <span>
#include <string_view>

#include "common/hash/hash.h"

namespace trainyard::control::policies {
namespace {

// Condition of a pod that no node fits (core/v1).
constexpr char kPodScheduled[] = "PodScheduled";
constexpr char kUnschedulable[] = "Unschedulable";

bool is_placed(const ObservedPod& pod) {
  return pod.node_state != NodeState::kUnplaced || pod.phase != PodPhase::kPending;
}

struct Trouble {
  std::string_view word;  ///< of a kubelet
  const char* reason;
};

constexpr std::array kTroubles = {
    Trouble{"ErrImagePull", api::reason::kImagePull},
    Trouble{"ImagePullBackOff", api::reason::kImagePull},
    Trouble{"ErrImageNeverPull", api::reason::kImagePull},
    Trouble{"InvalidImageName", api::reason::kImagePull},
    Trouble{"ImageInspectError", api::reason::kImagePull},
    Trouble{"RegistryUnavailable", api::reason::kImagePull},
    Trouble{"SignatureValidationFailed", api::reason::kImagePull},
    Trouble{"CreateContainerConfigError", api::reason::kContainerConfig},
    Trouble{"CreateContainerError", api::reason::kContainerConfig},
    Trouble{"RunContainerError", api::reason::kContainerConfig},
};

void note_trouble(const std::vector<const ObservedPod*>& members, Gang& gang) {
  for (const ObservedPod* pod : members) {
    if (!pod->waiting) continue;
    const char* reason = trouble_of(pod->waiting->reason);
    if (gang.trouble == nullptr) {
      gang.trouble = reason;
      gang.troubled = "pod " + pod->name + " container " + pod->waiting->container;
      gang.trouble_words = text_of(*pod->waiting);
    }
    if (reason == gang.trouble) ++gang.troubled_pods;
  }
}

}  // namespace

const char* trouble_of(const std::string& reason) {
  const auto* const found =
      std::find_if(kTroubles.begin(), kTroubles.end(),
                   [&](const Trouble& trouble) { return trouble.word == reason; });
  return found != kTroubles.end() ? found->reason : nullptr;
}

std::string text_of(const WaitingContainer& waiting) {
  return waiting.message.empty() ? waiting.reason : waiting.reason + ": " + waiting.message;
}

std::optional<Duration> pause_of(const std::string& job_uid, const api::TrainingJobStatus& status) {
  using std::chrono::milliseconds;
  constexpr milliseconds kLeast{5'000};  // until the pods are gone
  constexpr milliseconds kFirstRange{30'000};
  constexpr int64_t kMostDoublings = 4;
  int64_t times = 0;
  for (auto attempt = status.attempts.rbegin(); attempt != status.attempts.rend(); ++attempt) {
    if (!attempt->end_time) continue;  // the present one
    if (attempt->reason != api::reason::kGangTimeout) break;
    ++times;
  }
  if (times == 0) return std::nullopt;
  const int64_t range = kFirstRange.count() << std::min(times - 1, kMostDoublings);
  const std::string identity = job_uid + "/" + std::to_string(status.membership.generation);
  const Hash128 digest = xxh3_128(std::as_bytes(std::span(identity)));
  const uint64_t drawn = uint64_t{digest[0]} << 16U | uint64_t{digest[1]} << 8U | digest[2];
  return kLeast + milliseconds(range * static_cast<int64_t>(drawn) >> 24);
}

Gang look_at_gang(const std::vector<const ObservedPod*>& members, int64_t target,
                  const std::set<int>& completed) {
  Gang gang;
  gang.placed_count = std::ssize(completed);
  std::set<int> present = completed;
  for (const ObservedPod* pod : members) {
    if (!present.insert(pod->node_index).second) continue;
    if (is_placed(*pod)) ++gang.placed_count;
    for (const PodCondition& condition : pod->conditions) {
      const bool refused = condition.type == kPodScheduled && condition.status == "False" &&
                           condition.reason == kUnschedulable;
      if (refused && gang.unschedulable.empty()) {
        gang.unschedulable = pod->name + ": " + condition.message;
      }
    }
  }
  for (int index = 0; index < target; ++index) {
    if (!present.contains(index)) gang.missing.push_back(index);
  }
  gang.whole = gang.missing.empty() && target > 0;
  gang.placed = gang.whole && gang.placed_count >= target;
  note_trouble(members, gang);
  return gang;
}

}  // namespace trainyard::control::policies

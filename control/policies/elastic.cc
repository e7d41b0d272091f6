#include "control/policies/elastic.h"

#include <algorithm>

#include "common/api/job_size.h"

namespace trainyard::control::policies {
namespace {

/// Where nobody tells of room that has come up it is asked for no more often than this.
constexpr std::chrono::seconds kShortestAsk{10};
/// A snooze is doubled up to this; a longer one of the user's stays as it is.
constexpr std::chrono::hours kLongestDoubled{24 * 30};

/// What is left of `limit` after `since`; zero when it is over.
Duration left_of(Duration limit, Time since, Time now) {
  return std::max(limit - (now - since), Duration::zero());
}

Resize to_size(const ElasticInput& input, std::optional<int64_t> size) {
  Resize resize;
  if (!size || *size == input.target) return resize;
  resize.target = size;
  resize.reason = *size > input.target ? api::reason::kScaleUp : api::reason::kScaleDown;
  return resize;
}

Resize look_in(Duration wait) {
  Resize resize;
  resize.look_again = wait;
  return resize;
}

bool is_own(const api::Attempt& attempt, std::string_view reason) {
  return attempt.reason == reason && !attempt.requested.value_or(false);
}

Resize judge_unplaced(const ElasticInput& input) {
  const Time since = std::max(input.since, input.room_since.value_or(input.since));
  const Duration wait = left_of(input.spec->elastic_policy->pending_timeout, since, input.now);
  if (wait > Duration::zero()) return look_in(wait);
  // What the cluster does not take finds no node, however many there are.
  const int64_t room = input.refused ? input.placed : input.feasible.value_or(input.placed);
  if (room >= input.target) return {};
  return to_size(input, api::largest_allowed(*input.spec, room));
}

Resize judge_placed(const ElasticInput& input) {
  if (!input.feasible || input.ending) return {};
  // Not every pod that ends elsewhere is heard of: ask again some time.
  if (*input.feasible <= input.target) {
    return look_in(std::max<Duration>(input.spec->elastic_policy->scale_up_snooze, kShortestAsk));
  }
  const std::optional<int64_t> size = api::largest_allowed(*input.spec, *input.feasible);
  if (!size || *size <= input.target) return {};
  constexpr int64_t kMostDoublings = 6;
  Duration snooze = input.spec->elastic_policy->scale_up_snooze;
  for (int64_t i = 0; i < std::min(input.failed_growths, kMostDoublings); ++i) {
    if (snooze < kLongestDoubled) snooze *= 2;
  }
  const Duration wait = left_of(snooze, input.since, input.now);
  if (wait > Duration::zero()) return look_in(wait);
  return to_size(input, size);
}

}  // namespace

int64_t nodes_at_start(const api::TrainingJobSpec& spec) {
  return api::largest_allowed(spec, spec.num_nodes).value_or(spec.num_nodes);
}

std::string not_allowed_text(const api::TrainingJobSpec& spec) {
  return "numNodes " + std::to_string(spec.num_nodes) +
         " is no size that elasticPolicy allows: the largest below it is " +
         std::to_string(nodes_at_start(spec));
}

int64_t count_failed_growths(const api::TrainingJobStatus& status) {
  int64_t failed = 0;
  for (size_t i = 1; i < status.attempts.size(); ++i) {
    const bool grew = is_own(status.attempts[i - 1], api::reason::kScaleUp);
    if (grew && is_own(status.attempts[i], api::reason::kScaleDown)) ++failed;
  }
  return failed;
}

Resize judge_size(const ElasticInput& input) {
  const std::optional<int64_t> wanted = api::largest_allowed(*input.spec, input.spec->num_nodes);
  if (!wanted) return {};
  const bool too_large = input.target > *wanted;
  const bool rigid = !input.spec->elastic_policy;
  // Growing on the user's word asks no cluster first: a gang that finds no room shrinks again.
  // Where there were too few nodes before, any edit would pass for such a word.
  const bool by_word = input.spec_changed && !(input.degraded && input.feasible);
  if (too_large || rigid || (by_word && *wanted > input.target)) {
    Resize resize = to_size(input, wanted);
    resize.requested = true;
    return resize;
  }
  // Pods that do not exist yet say nothing about room, unless nobody takes them.
  if (!input.gang_whole) {
    return input.refused && input.placed > 0 ? judge_unplaced(input) : Resize();
  }
  return input.gang_placed ? judge_placed(input) : judge_unplaced(input);
}

}  // namespace trainyard::control::policies

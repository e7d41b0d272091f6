#include "control/policies/success.h"

#include <algorithm>

#include "common/api/validate.h"

namespace trainyard::control::policies {
namespace {

bool rule_holds(const api::SuccessRule& rule, const std::set<int>& succeeded, int64_t target) {
  int64_t wanted = 0;
  int64_t reached = 0;
  for (int64_t index = 0; index < target; ++index) {
    if (!index_listed(rule.succeeded_indexes, index)) continue;
    ++wanted;
    if (succeeded.contains(static_cast<int>(index))) ++reached;
  }
  if (rule.succeeded_count) return reached >= *rule.succeeded_count;
  return wanted > 0 && reached == wanted;
}

}  // namespace

bool index_listed(std::string_view list, int64_t index) {
  if (list.empty()) return true;
  const auto ranges = api::parse_indexes(list);
  return ranges && std::any_of(ranges->begin(), ranges->end(), [&](const auto& range) {
           return range.first <= index && index <= range.last;
         });
}

std::optional<std::string_view> judge_success(const api::SuccessPolicy& policy,
                                              const std::vector<const ObservedPod*>& members,
                                              int64_t target, const std::set<int>& completed) {
  std::set<int> succeeded = completed;
  for (const ObservedPod* pod : members) {
    if (pod->phase == PodPhase::kSucceeded) succeeded.insert(pod->node_index);
  }
  const bool by_rule = std::any_of(policy.rules.begin(), policy.rules.end(), [&](const auto& rule) {
    return rule_holds(rule, succeeded, target);
  });
  if (by_rule) return api::reason::kSuccessPolicy;
  if (target > 0 && static_cast<int64_t>(succeeded.size()) >= target) {
    return api::reason::kCompletionsReached;
  }
  return std::nullopt;
}

}  // namespace trainyard::control::policies

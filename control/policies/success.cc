#include "control/policies/success.h"

#include <algorithm>
#include <charconv>
#include <set>

namespace trainyard::control::policies {
namespace {

std::optional<int64_t> number_of(std::string_view text) {
  int64_t value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

bool part_holds(std::string_view part, int64_t index) {
  const size_t dash = part.find('-');
  const std::optional<int64_t> from = number_of(part.substr(0, dash));
  const std::optional<int64_t> to =
      dash == std::string_view::npos ? from : number_of(part.substr(dash + 1));
  return from && to && *from <= index && index <= *to;
}

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
  while (!list.empty()) {
    const size_t comma = list.find(',');
    if (part_holds(list.substr(0, comma), index)) return true;
    list.remove_prefix(comma == std::string_view::npos ? list.size() : comma + 1);
  }
  return false;
}

std::optional<std::string_view> judge_success(const api::SuccessPolicy& policy,
                                              const std::vector<const ObservedPod*>& members,
                                              int64_t target) {
  std::set<int> succeeded;
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

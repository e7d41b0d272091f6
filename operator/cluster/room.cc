#include "operator/cluster/room.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <nlohmann/json.hpp>

#include "common/text/quantity.h"
#include "operator/cluster/members.h"

namespace trainyard::cluster {
namespace {

using nlohmann::json;

constexpr double kThousand = 1000;
constexpr char kPodsResource[] = "pods";

Amounts requests_of(const json& container) {
  const json& resources = at(container, "resources");
  Amounts requests = amounts_of(at(resources, "limits"));
  for (const auto& [name, amount] : amounts_of(at(resources, "requests")))
    requests[name] = amount;
  return requests;
}

bool tolerates(const PodNeeds::Toleration& toleration, const Taint& taint) {
  if (!toleration.effect.empty() && toleration.effect != taint.effect) return false;
  if (!toleration.key.empty() && toleration.key != taint.key) return false;
  // A node that has just come back keeps its taint for a moment: who goes there is evicted at once.
  if (toleration.passing && taint.effect == "NoExecute") return false;
  return toleration.exists || (!toleration.key.empty() && toleration.value == taint.value);
}

}  // namespace

Amounts amounts_of(const json& quantities) {
  Amounts amounts;
  if (!quantities.is_object()) return amounts;
  for (const auto& [name, value] : quantities.items()) {
    std::optional<int64_t> amount;
    if (value.is_string()) amount = text::parse_quantity(value.get_ref<const std::string&>());
    if (value.is_number()) amount = text::parse_quantity(value.dump());
    if (amount) amounts[name] = *amount;
  }
  return amounts;
}

void add_to(Amounts& sum, const Amounts& amounts) {
  for (const auto& [name, amount] : amounts)
    sum[name] =
        amount > text::kMostThousandths - sum[name] ? text::kMostThousandths : sum[name] + amount;
}

PodNeeds needs_of(const json& pod_spec) {
  PodNeeds needs;
  for (const json& container : at(pod_spec, "containers"))
    add_to(needs.requests, requests_of(container));
  for (const json& container : at(pod_spec, "initContainers")) {
    for (const auto& [name, amount] : requests_of(container))
      needs.requests[name] = std::max(needs.requests[name], amount);
  }
  needs.requests[kPodsResource] = static_cast<int64_t>(kThousand);
  const json& selector = at(pod_spec, "nodeSelector");
  if (selector.is_object()) {
    for (const auto& [key, value] : selector.items())
      needs.node_selector[key] = value.is_string() ? value.get<std::string>() : "";
  }
  for (const json& toleration : at(pod_spec, "tolerations")) {
    needs.tolerations.push_back(
        {text_at(toleration, "key"), text_at(toleration, "value"), text_at(toleration, "effect"),
         text_at(toleration, "operator") == "Exists",
         toleration.is_object() && toleration.contains("tolerationSeconds")});
  }
  return needs;
}

bool may_go_to(const PodNeeds& needs, const std::map<std::string, std::string>& labels,
               const std::vector<Taint>& taints) {
  const bool selected =
      std::all_of(needs.node_selector.begin(), needs.node_selector.end(), [&](const auto& wanted) {
        const auto label = labels.find(wanted.first);
        return label != labels.end() && label->second == wanted.second;
      });
  if (!selected) return false;
  return std::all_of(taints.begin(), taints.end(), [&](const Taint& taint) {
    return std::any_of(needs.tolerations.begin(), needs.tolerations.end(),
                       [&](const auto& toleration) { return tolerates(toleration, taint); });
  });
}

int64_t pods_that_fit(const PodNeeds& needs, const Amounts& allocatable, const Amounts& used) {
  int64_t fit = std::numeric_limits<int64_t>::max();
  for (const auto& [name, amount] : needs.requests) {
    if (amount <= 0) continue;
    const auto there = allocatable.find(name);
    const auto taken = used.find(name);
    const int64_t left = (there == allocatable.end() ? 0 : there->second) -
                         (taken == used.end() ? 0 : taken->second);
    fit = std::min(fit, std::max<int64_t>(0, left) / amount);
  }
  return fit;
}

}  // namespace trainyard::cluster

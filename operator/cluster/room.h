#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

/// How many pods of a kind the nodes have room for: an estimate for whoever thinks about growing,
/// made from what the cache holds. The scheduler has the last word. Pure.
namespace trainyard::cluster {

/// Amounts by resource ("cpu", "memory", "nvidia.com/gpu", "pods"), in thousandths.
using Amounts = std::map<std::string, int64_t>;

/// The quantities of an object ({"cpu": "2", ...}); what is none is left out.
Amounts amounts_of(const nlohmann::json& quantities);

struct Taint {
  std::string key;
  std::string value;
  std::string effect;
};

/// What decides where a pod may go; affinities are not looked at.
struct PodNeeds {
  Amounts requests;  ///< of all containers together, and one of "pods"
  std::map<std::string, std::string> node_selector;
  /// Taints that it tolerates; an empty key or effect stands for any.
  struct Toleration {
    std::string key;
    std::string value;
    std::string effect;
    bool exists = false;   ///< operator Exists: any value
    bool passing = false;  ///< tolerationSeconds: of NoExecute for so long only, then it is evicted
  };
  std::vector<Toleration> tolerations;
};

/// What a pod of this spec needs; requests that are absent are its limits, as the server defaults
/// them.
PodNeeds needs_of(const nlohmann::json& pod_spec);

/// Whether pods of these needs may go to a node with these labels and taints.
bool may_go_to(const PodNeeds& needs, const std::map<std::string, std::string>& labels,
               const std::vector<Taint>& taints);

/// Pods that fit into what is left of `allocatable` after `used`.
int64_t pods_that_fit(const PodNeeds& needs, const Amounts& allocatable, const Amounts& used);

void add_to(Amounts& sum, const Amounts& amounts);

}  // namespace trainyard::cluster

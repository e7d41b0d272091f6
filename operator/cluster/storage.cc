#include "operator/cluster/storage.h"

#include <algorithm>
#include <string>

#include <nlohmann/json.hpp>

#include "operator/cluster/members.h"

namespace trainyard::cluster {
namespace {

using nlohmann::json;

constexpr char kReadWriteMany[] = "ReadWriteMany";

/// What the volume gives, once there is one; until then what is asked for.
const json& access_modes(const json& claim) {
  const json& given = at(at(claim, "status"), "accessModes");
  return given.is_array() && !given.empty() ? given : at(at(claim, "spec"), "accessModes");
}

}  // namespace

bool needs_shared_storage(const api::TrainingJobSpec& spec) {
  return spec.num_nodes > 1 && spec.checkpoint_policy.storage.has_value();
}

std::optional<control::Refusal> judge_claim(const json& claim, const api::TrainingJobSpec& spec) {
  const json& modes = access_modes(claim);
  if (!modes.is_array() || modes.empty()) return std::nullopt;
  if (std::find(modes.begin(), modes.end(), kReadWriteMany) != modes.end()) return std::nullopt;
  std::string found;
  for (const json& mode : modes) {
    if (!mode.is_string()) continue;
    found += (found.empty() ? "" : ", ") + mode.get<std::string>();
  }
  return control::Refusal{
      api::reason::kStorageNotShared,
      "claim " + spec.checkpoint_policy.storage->persistent_volume_claim.claim_name +
          ": access mode " + found + ", wanted " + kReadWriteMany + ": pods of " +
          std::to_string(spec.num_nodes) + " nodes write checkpoints to it"};
}

}  // namespace trainyard::cluster

#include "common/api/pod_places.h"

#include <filesystem>
#include <string_view>
#include <vector>

#include "common/api/rules.h"
#include "common/api/validate.h"
#include "common/text/document.h"

namespace trainyard::api {
namespace {

using text::Kind;
using text::Node;

/// A folder of ours, and how it is named in messages.
struct Place {
  std::string folder;
  const char* holds;
};

std::vector<Place> places_of(const TrainingJobSpec& spec) {
  std::vector<Place> places;
  if (spec.engine) places.push_back({kEngineFolder, "the ranks' configuration"});
  if (spec.engine || needs_injected_agent(spec)) {
    places.push_back({kControlFolder, "the agent's link to the operator"});
  }
  if (needs_injected_agent(spec)) places.push_back({kAgentFolder, "the agent"});
  return places;
}

std::string normal(const std::string& path) {
  return std::filesystem::path(path + "/").lexically_normal().string();  // ends with '/'
}

bool is_within(const std::string& inner, const std::string& outer) {
  return normal(inner).starts_with(normal(outer));
}

const Node* member(const Node* object, std::string_view key, Kind kind) {
  const Node* found = object == nullptr ? nullptr : object->find(key);
  return found != nullptr && found->kind == kind ? found : nullptr;
}

std::string text_of(const Node& object, std::string_view key) {
  const Node* found = member(&object, key, Kind::kString);
  return found == nullptr ? std::string() : found->string;
}

bool is_true(const Node* object, std::string_view key) {
  const Node* found = member(object, key, Kind::kBool);
  return found != nullptr && found->boolean;
}

/// The container that gets our mounts: `trainer`, else the first.
size_t trainer_of(const Node& containers) {
  for (size_t i = 0; i < containers.items.size(); ++i) {
    if (text_of(containers.items[i], "name") == kTrainerContainer) return i;
  }
  return 0;
}

/// Whether a mount is the one that the operator would add: all of the claim, to be written to.
bool is_our_mount(const Node& mount, const std::string& claim_volume) {
  return !claim_volume.empty() && text_of(mount, "name") == claim_volume &&
         is_same_place(text_of(mount, "mountPath"), kCheckpointFolder) &&
         !is_true(&mount, "readOnly") && text_of(mount, "subPath").empty() &&
         text_of(mount, "subPathExpr").empty();
}

/// One mount (or raw device) of the template, at `field`; `claim_volume`: the template's volume of
/// the claim for checkpoints, or nothing.
void check_mount(const TrainingJob& job, const Node& mount, const std::string& field,
                 const std::string& claim_volume, const Rules& rules) {
  const std::string where = text_of(mount, field);
  if (!where.starts_with('/')) return;
  for (const Place& place : places_of(job.spec)) {
    rules.require(!is_within(where, place.folder), field, where,
                  "a place outside " + place.folder + ", where the operator mounts " +
                      std::string(place.holds));
  }
  rules.require(!is_same_place(where, kShmFolder) || !is_true(&mount, "readOnly"), field, where,
                "a writable mount, as ranks share memory there");
  const std::string folder = checkpoint_folder(job.metadata, job.spec);
  if (folder.empty() || is_our_mount(mount, claim_volume)) return;
  // Beside the job's folder the claim may hold whatever else the template mounts there, and what
  // lies in the folder of a foreign program is its own business.
  const bool covers = (is_within(where, kCheckpointFolder) && is_within(folder, where)) ||
                      (job.spec.engine && is_within(where, folder));
  rules.require(!covers, field, where,
                "a place outside " + folder +
                    ", where the job's checkpoints go to the claim of checkpointPolicy.storage");
}

/// The name of the template's own volume of the claim for checkpoints, which the operator mounts
/// where there is one; empty: there is none.
std::string check_claim(const TrainingJobSpec& spec, const Node& volumes, const Rules& rules) {
  if (!spec.checkpoint_policy.storage) return "";
  const std::string& claim = spec.checkpoint_policy.storage->persistent_volume_claim.claim_name;
  for (size_t i = 0; i < volumes.items.size(); ++i) {
    const Node* source = member(&volumes.items[i], "persistentVolumeClaim", Kind::kMapping);
    if (source == nullptr || text_of(*source, "claimName") != claim) continue;
    rules.below("volumes", i)
        .below("persistentVolumeClaim")
        .require(!is_true(source, "readOnly"), "readOnly", "true",
                 "false: checkpoints are written to this claim; set readOnly of the volumeMounts "
                 "instead");
    return text_of(volumes.items[i], "name");
  }
  return "";
}

}  // namespace

std::string checkpoint_folder(const ObjectMeta& job, const TrainingJobSpec& spec) {
  if (!spec.checkpoint_policy.storage) return "";
  const std::string& path = spec.checkpoint_policy.path;
  return std::string(kCheckpointFolder) + "/" + (path.empty() ? job.name : path);
}

void check_pod_places(const TrainingJob& job, const std::string& path, FaultList& faults) {
  const text::Document whole = text::parse_json(job.spec.pod_template->json);
  const Node* spec = member(&whole.root, "spec", Kind::kMapping);
  const Rules rules(faults, text::join_path(path, "spec"));
  const Node* volumes = member(spec, "volumes", Kind::kSequence);
  const std::string claim_volume =
      volumes == nullptr ? std::string() : check_claim(job.spec, *volumes, rules);
  const Node* containers = member(spec, "containers", Kind::kSequence);
  if (containers == nullptr || containers->items.empty()) return;
  const size_t trainer = trainer_of(*containers);
  const Rules below = rules.below("containers", trainer);
  for (const auto& [list, field] :
       {std::pair("volumeMounts", "mountPath"), std::pair("volumeDevices", "devicePath")}) {
    const Node* mounts = member(&containers->items[trainer], list, Kind::kSequence);
    for (size_t i = 0; mounts != nullptr && i < mounts->items.size(); ++i)
      check_mount(job, mounts->items[i], field, claim_volume, below.below(list, i));
  }
}

}  // namespace trainyard::api

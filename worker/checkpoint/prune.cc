#include "worker/checkpoint/prune.h"

#include <algorithm>
#include <limits>

#include "worker/checkpoint/reader.h"
#include "worker/checkpoint/store.h"

namespace trainyard::checkpoint {
namespace {

template <class T>
bool contains(const std::vector<T>& values, const T& value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

/// What the newest checkpoint that can be opened says; -1: nothing.
int64_t best_step(FileSystem& files, const std::filesystem::path& root,
                  const LineageRecords& records, const std::vector<CheckpointId>& newest_first) {
  for (const CheckpointId& id : newest_first) {
    const auto reader = open_own(files, root, id, records, Verify::kManifest);
    if (reader) return best_step_of((*reader)->manifest().scalars);
  }
  return -1;
}

}  // namespace

Result<PrunePlan> plan_prune(FileSystem& files, const std::filesystem::path& root,
                             const RetentionPolicy& policy) {
  TRAINYARD_TRY(files.list(root));  // a missing directory is an error here
  TRAINYARD_ASSIGN(const StoredLineage stored, load_lineage(files, root));
  TRAINYARD_ASSIGN(std::vector<FoundDirectory> found, find_checkpoints(files, root));
  if (stored.records.empty()) {
    return Error{ErrorCode::kNotFound,
                 root.string() + ": no lineage record, so no job's checkpoints"};
  }
  PrunePlan plan;
  const int64_t newest = stored.records.rbegin()->first;
  TRAINYARD_ASSIGN(const Lineage lineage, Lineage::of(newest, stored.records));
  const std::vector<CheckpointId> accepted = newest_first(found, lineage);
  if (accepted.empty()) {
    return Error{ErrorCode::kNotFound, root.string() + ": no checkpoint here"};
  }
  const NewestChecked checked =
      check_newest(files, root, stored.records, accepted, policy.keep_last, Verify::kAll);
  // Others would go on the strength of one that nobody can read.
  if (checked.unread) {
    return checked.unread->with_context(root.string() + ": nothing may be removed");
  }
  if (checked.good_steps == 0) {
    return Error{ErrorCode::kInvalidData,
                 root.string() + ": none of " + std::to_string(accepted.size()) +
                     " checkpoints is good; nothing may be removed (" + checked.notes.back() + ")"};
  }
  plan.left_alone = checked.notes;
  // What the newest generation has not committed may be in the middle of it.
  std::erase_if(found, [&](const FoundDirectory& directory) {
    const bool unfinished = !directory.committed && directory.id.generation >= newest;
    if (unfinished) plan.left_alone.push_back(directory_name(directory.id) + ": unfinished");
    return unfinished || contains(checked.damaged, directory.id);
  });
  RetentionPolicy with_best = policy;
  with_best.best_step = best_step(files, root, stored.records, accepted);
  plan.removed = plan_retention(found, newest, lineage, stored.recorded,
                                std::numeric_limits<int64_t>::max(), with_best);
  std::sort(plan.removed.begin(), plan.removed.end());
  plan.records = stored.records;
  std::vector<CheckpointId> left;
  for (const CheckpointId& id : plan.removed) {
    const Status removable = check_removable(files, root, id, stored.records);
    // Another error may be a disk's bad moment: the removal will tell.
    if (removable || removable.error().code != ErrorCode::kConflict) continue;
    left.push_back(id);
    plan.left_alone.push_back(directory_name(id) + ": " + removable.error().message);
  }
  std::erase_if(plan.removed, [&](const CheckpointId& id) { return contains(left, id); });
  for (const FoundDirectory& directory : found) {
    const CheckpointId& id = directory.id;
    if (contains(plan.removed, id) || contains(left, id)) continue;
    if (lineage.accepts(id)) {
      plan.kept.push_back(id);
    } else {
      plan.left_alone.push_back(directory_name(id) + ": of another branch");
    }
  }
  return plan;
}

CleanUp prune(FileSystem& files, const std::filesystem::path& root, const PrunePlan& plan,
              std::vector<std::string>* notes) {
  const std::optional<CheckpointId> latest = read_latest(files, root);
  if (latest && contains(plan.removed, *latest) && !plan.kept.empty()) {
    const auto newest = std::max_element(
        plan.kept.begin(), plan.kept.end(), [](const CheckpointId& a, const CheckpointId& b) {
          return std::pair(a.step, a.generation) < std::pair(b.step, b.generation);
        });
    (void)files.remove_file(root / kLatestLink);  // it would not be moved to an older generation
    const std::string note = point_latest(files, root, *newest);
    if (!note.empty() && notes != nullptr) notes->push_back(note);
  }
  return remove_checkpoints(files, root, plan.records, plan.removed);
}

}  // namespace trainyard::checkpoint

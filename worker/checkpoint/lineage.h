#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/error.h"

/// Which checkpoints belong to a generation's history: pure. docs/formats/checkpoint.md, "Lineage".
namespace trainyard::checkpoint {

/// Names one checkpoint of a directory: "g<generation>-step-<step, 10 digits>".
struct CheckpointId {
  int64_t generation = 0;
  int64_t step = 0;
  auto operator<=>(const CheckpointId&) const =
      default;  // NOLINT(modernize-use-nullptr): clang-tidy 14
};
std::string directory_name(const CheckpointId& id);
/// The inverse; nullopt for any other spelling.
std::optional<CheckpointId> parse_directory_name(std::string_view name);

/// lineage/<generation>.json: written once, before the generation's first step, never changed.
struct LineageRecord {
  int64_t generation = 0;
  std::string job_uid;
  /// The generation whose history this one goes on with; nullopt for the first.
  std::optional<int64_t> parent_generation;
  /// Steps of the parent's history that belong to this one's: 0..fork_step. kFromScratch: none.
  int64_t fork_step = -1;
  /// Drawn at random when the generation begins, so that two copies of a run whose generations have
  /// the same number and fork can be told apart. Empty: written before there were any.
  std::string branch_id;
  bool operator==(const LineageRecord&) const = default;
};
/// fork_step of a generation that started from freshly initialised weights.
inline constexpr int64_t kFromScratch = -1;

std::string encode(const LineageRecord& record);
/// Errors: kInvalidData, naming what is wrong; a single changed bit is always found.
Result<LineageRecord> decode_lineage(std::string_view text);

/// All readable lineage records of a directory, by generation.
using LineageRecords = std::map<int64_t, LineageRecord>;

/// A generation's history: for it and every ancestor the last step that counts.
class Lineage {
 public:
  /// The history of `generation`. A generation without a record has no history: not even itself.
  /// Errors: kInvalidData when a record names a parent not below itself (a circle).
  static Result<Lineage> of(int64_t generation, const LineageRecords& records);

  /// Whether a checkpoint belongs to this history: of the generation itself any; of an ancestor
  /// only up to each fork between it and here.
  bool accepts(const CheckpointId& id) const;
  /// Whether `generation` is the history's own or one of its ancestors.
  bool has(int64_t generation) const { return last_step_.contains(generation); }
  bool empty() const { return last_step_.empty(); }

 private:
  std::map<int64_t, int64_t> last_step_;  // generation -> last accepted step (inclusive)
};

/// The newest generation at or below `hint` that has a record: a generation that died before it
/// wrote one never trained, so its predecessor's history is the one to go on with.
std::optional<int64_t> newest_recorded(const LineageRecords& records, int64_t hint);

}  // namespace trainyard::checkpoint

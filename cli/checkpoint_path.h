#pragma once

#include <filesystem>
#include <functional>
#include <iosfwd>
#include <memory>
#include <set>
#include <string>

#include "common/base/error.h"
#include "worker/checkpoint/reader.h"

namespace trainyard::cli {

/// What a user means by a path: the job's checkpoint directory, where it is the directory of a
/// `trainyard run` (it holds job.json); else the path itself.
/// Errors: kInvalidData where it is a file, or where the run's checkpoint directory has those of
/// another job; those of reading job.json, kInvalidConfig or kInvalidData where it is damaged.
Result<std::filesystem::path> checkpoints_at(const std::filesystem::path& path);

/// Tells the user, each once, of damaged checkpoints and records that were passed over.
class PassedOver {
 public:
  explicit PassedOver(std::ostream& err) : err_(err) {}
  void tell(const std::string& note);

 private:
  std::ostream& err_;
  std::set<std::string> told_;
};

/// Opens what a user names and lets `use` read of it what it wants: a checkpoint's own directory,
/// whose damage is an error, or a job's checkpoint or run directory, whose newest good one is
/// taken; newer ones, that a shard turned out damaged of included, are told to `passed_over`, and
/// `use` is called again. Errors: as checkpoints_at, CheckpointReader::open,
/// checkpoint::read_newest_good and `use`.
Result<std::unique_ptr<checkpoint::CheckpointReader>> read_checkpoint(
    checkpoint::FileSystem& files, const std::filesystem::path& path,
    const std::function<Status(checkpoint::CheckpointReader&)>& use, PassedOver& passed_over);

/// Whether `path` is one checkpoint rather than a directory of them.
bool is_checkpoint(checkpoint::FileSystem& files, const std::filesystem::path& path);

}  // namespace trainyard::cli

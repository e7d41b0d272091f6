#include "cli/checkpoint_path.h"

#include <algorithm>
#include <ostream>

#include "cli/commands.h"
#include "cli/named_path.h"
#include "common/api/decode.h"
#include "common/io/file.h"
#include "control/local/job_store.h"
#include "worker/checkpoint/store.h"

namespace trainyard::cli {
namespace {

constexpr int64_t kMaxJobBytes = 1 << 20;
constexpr char kWanted[] = "the directory of a checkpoint, of a job's checkpoints or of a run";

/// Whether the checkpoints at `root` are of the job that `file` says, where both can be read.
Status check_job_at(const std::filesystem::path& root, const std::filesystem::path& file,
                    const std::string& uid) {
  checkpoint::PosixFileSystem files;
  const auto stored = checkpoint::load_lineage(files, root);
  if (!stored || uid.empty()) return {};
  for (const auto& [generation, record] : stored->records) {
    if (record.job_uid == uid) continue;
    return Error{ErrorCode::kInvalidData, root.string() + ": found checkpoints of job " +
                                              record.job_uid + ", wanted " + uid + " as in " +
                                              file.string() +
                                              "; move them away, or name their directory itself"};
  }
  return {};
}

}  // namespace

Result<std::filesystem::path> checkpoints_at(const std::filesystem::path& path) {
  TRAINYARD_TRY(check_directory(path, kWanted));
  const std::filesystem::path file = path / control::local::kJobFile;
  const Result<std::string> text = read_file(file, kMaxJobBytes);
  // Whatever keeps it from being read, it is said of the checkpoints that are not there either.
  if (!text) return path;
  const Result<api::TrainingJob> job =
      api::decode_training_job(*text, {file.string(), api::UnknownKeys::kIgnore});
  if (job) {
    const std::filesystem::path root = control::local::checkpoint_dir_of(path, *job);
    TRAINYARD_TRY(check_job_at(root, file, job->metadata.uid));
    return root;
  }
  return Error{ErrorCode::kInvalidData,
               job.error().message + "; name the directory of the checkpoints instead"};
}

bool is_checkpoint(checkpoint::FileSystem& files, const std::filesystem::path& path) {
  const bool named = checkpoint::parse_directory_name(path.filename().string()).has_value();
  if (named && check_directory(path, kWanted)) return true;
  const auto names = files.list(path);
  return names &&
         std::binary_search(names->begin(), names->end(), std::string(checkpoint::kManifestFile));
}

Result<std::unique_ptr<checkpoint::CheckpointReader>> read_checkpoint(
    checkpoint::FileSystem& files, const std::filesystem::path& path,
    const std::function<Status(checkpoint::CheckpointReader&)>& use, PassedOver& passed_over) {
  if (is_checkpoint(files, path)) {
    TRAINYARD_ASSIGN(auto reader, checkpoint::CheckpointReader::open(
                                      files, path, checkpoint::Verify::kManifest));
    const Status used = use(*reader);
    if (used) return reader;
    return reader->shard_error() ? used.error().with_context(path.string()) : used.error();
  }
  TRAINYARD_ASSIGN(const std::filesystem::path root, checkpoints_at(path));
  std::vector<std::string> notes;
  auto reader = checkpoint::read_newest_good(files, root, use, &notes);
  for (const std::string& note : notes)
    passed_over.tell(root.string() + "/" + note);
  return reader;
}

void PassedOver::tell(const std::string& note) {
  if (told_.insert(note).second) err_ << "skipped " << printable(note) << '\n';
}

}  // namespace trainyard::cli

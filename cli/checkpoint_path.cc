#include "cli/checkpoint_path.h"

#include <algorithm>

#include "worker/checkpoint/lineage.h"

namespace trainyard::cli {

bool is_checkpoint(checkpoint::FileSystem& files, const std::filesystem::path& path) {
  if (checkpoint::parse_directory_name(path.filename().string())) return true;
  const auto names = files.list(path);
  return names &&
         std::binary_search(names->begin(), names->end(), std::string(checkpoint::kManifestFile));
}

Result<std::unique_ptr<checkpoint::CheckpointReader>> open_checkpoint(
    checkpoint::FileSystem& files, const std::filesystem::path& path, checkpoint::Verify verify,
    std::vector<std::string>* notes) {
  if (is_checkpoint(files, path)) return checkpoint::CheckpointReader::open(files, path, verify);
  return checkpoint::open_newest_good(files, path, std::nullopt, verify, notes);
}

}  // namespace trainyard::cli

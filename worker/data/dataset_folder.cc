#include "worker/data/dataset_folder.h"

#include <cerrno>
#include <fcntl.h>
#include <set>
#include <stdio.h>  // renameat2, RENAME_EXCHANGE
#include <string>
#include <system_error>
#include <utility>

namespace trainyard::data {
namespace {

namespace fs = std::filesystem;

Error file_error(const std::string& what, const std::error_code& code) {
  return {ErrorCode::kIo, what + ": " + code.message()};
}

Status remove_tree(const fs::path& path) {
  std::error_code code;
  fs::remove_all(path, code);
  if (code) return file_error("remove " + path.string(), code);
  return {};
}

Status move_folder(const fs::path& from, const fs::path& to) {
  std::error_code code;
  fs::rename(from, to, code);
  if (code) return file_error("rename " + from.string() + " to " + to.string(), code);
  return {};
}

}  // namespace

Result<DatasetFolder> DatasetFolder::lock(const fs::path& output) {
  std::error_code code;
  fs::path place = fs::absolute(output, code).lexically_normal();
  if (!place.has_filename()) place = place.parent_path();  // "data/"
  if (code || !place.has_filename()) {
    return Error{ErrorCode::kInvalidConfig,
                 "output: found '" + output.string() + "', wanted the name of a folder to make"};
  }
  TRAINYARD_TRY(make_directories(place.parent_path()));
  const std::string name = "." + place.filename().string() + ".lock";
  TRAINYARD_ASSIGN(FileLock lock, FileLock::acquire(place.parent_path() / name));
  return DatasetFolder(std::move(place), std::move(lock));
}

Status DatasetFolder::check_replaceable() const {
  std::error_code code;
  if (!fs::exists(output_, code)) return {};
  const auto in_the_way = [&](const std::string& what) {
    return Error{ErrorCode::kAlreadyExists,
                 output_.string() + ": " + what + "; move it away or choose another --out"};
  };
  if (!fs::is_directory(output_, code)) return in_the_way("is there and is no folder");
  if (fs::is_empty(output_, code)) return {};
  const Result<DatasetManifest> manifest = read_manifest(output_);
  if (!manifest)
    return in_the_way("is there and is no data set (" + manifest.error().message + ")");
  std::set<std::string> known = {kManifestName};
  for (const SplitRecord& split : manifest->splits) {
    known.insert(split.name);
    for (const ShardRecord& shard : split.shards)
      known.insert(shard.file);
  }
  for (fs::recursive_directory_iterator entry(output_, code), end; !code && entry != end;
       entry.increment(code)) {
    const std::string name = entry->path().lexically_relative(output_).generic_string();
    if (!known.contains(name))
      return in_the_way("holds '" + name + "', which is not of its data set");
  }
  if (code) return file_error("list " + output_.string(), code);
  return {};
}

Result<fs::path> DatasetFolder::begin() const {
  TRAINYARD_TRY(remove_tree(partial()));
  TRAINYARD_TRY(make_directories(partial()));
  return partial();
}

Status DatasetFolder::commit(const DatasetManifest& manifest) const {
  TRAINYARD_TRY(write_file_atomic(partial() / kManifestName, encode_manifest(manifest)));
  std::error_code code;
  if (!fs::exists(output_, code) || fs::is_empty(output_, code)) {
    TRAINYARD_TRY(move_folder(partial(), output_));
    return sync_directory(output_.parent_path());
  }
  if (::renameat2(AT_FDCWD, partial().c_str(), AT_FDCWD, output_.c_str(), RENAME_EXCHANGE) != 0) {
    if (errno != EINVAL && errno != ENOSYS) {
      return io_error("exchange " + partial().string() + " with " + output_.string(), errno);
    }
    // A file system that cannot exchange: for a moment there is none, but never half of one.
    const fs::path old = output_.string() + ".old";
    TRAINYARD_TRY(remove_tree(old));
    TRAINYARD_TRY(move_folder(output_, old));
    TRAINYARD_TRY(move_folder(partial(), output_));
    TRAINYARD_TRY(sync_directory(output_.parent_path()));
    return remove_tree(old);
  }
  TRAINYARD_TRY(sync_directory(output_.parent_path()));
  return remove_tree(partial());
}

}  // namespace trainyard::data

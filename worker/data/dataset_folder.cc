#include "worker/data/dataset_folder.h"

#include <cerrno>
#include <fcntl.h>
#include <set>
#include <stdio.h>  // renameat2, RENAME_EXCHANGE
#include <string>
#include <sys/stat.h>  // statx
#include <system_error>
#include <utility>

#include "common/io/path_exists.h"

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

Error in_the_way(const fs::path& place, const std::string& what) {
  return {ErrorCode::kAlreadyExists,
          place.string() + ": " + what + "; move it away or choose another --out"};
}

/// Whether a data set, whole or not, has a file of that name.
bool is_of_a_dataset(const fs::path& name) {
  const std::string file = name.filename().string();
  if (!name.has_parent_path()) return file.starts_with(kManifestName);  // and its temporary
  return file.ends_with(".tokens") || file.ends_with(".tokens.tmp");
}

/// Removes what a preparation that was killed has left at a place of ours. Somebody else's folder
/// may have the same name: that one stays. Errors: kAlreadyExists, kIo.
Status remove_leftovers(const fs::path& place) {
  std::error_code code;
  const fs::file_status status = fs::symlink_status(place, code);
  if (!fs::exists(status)) return {};
  if (!fs::is_directory(status)) {
    return in_the_way(place, "is where the data set is built, but is not a folder");
  }
  code.clear();
  for (fs::recursive_directory_iterator entry(place, code), end; !code && entry != end;
       entry.increment(code)) {
    std::error_code none;
    if (fs::is_directory(entry->symlink_status(none))) continue;
    const fs::path name = entry->path().lexically_relative(place);
    if (!is_of_a_dataset(name)) {
      return in_the_way(place, "is where the data set is built, and holds '" +
                                   name.generic_string() + "', which belongs to no data set");
    }
  }
  if (code) return file_error("list " + place.string(), code);
  return remove_tree(place);
}

}  // namespace

bool is_mount_point(const fs::path& folder) {
  struct statx info {};
  if (::statx(AT_FDCWD, folder.c_str(), 0, STATX_TYPE, &info) != 0) return false;
  return (info.stx_attributes & info.stx_attributes_mask & STATX_ATTR_MOUNT_ROOT) != 0;
}

Result<DatasetFolder> DatasetFolder::lock(const fs::path& output) {
  std::error_code code;
  fs::path place = fs::absolute(output, code).lexically_normal();
  if (!place.has_filename()) place = place.parent_path();  // "data/"
  if (code || !place.has_filename()) {
    return Error{ErrorCode::kInvalidConfig,
                 "output: found '" + output.string() + "', wanted the name of a folder to create"};
  }
  // Behind a link the data set lies where that leads: a folder cannot be renamed over the link.
  std::error_code none;
  if (fs::is_symlink(place, none)) {
    place = fs::canonical(place, code);
    if (code) {
      return Error{ErrorCode::kInvalidConfig,
                   "output: found '" + output.string() +
                       "', a symbolic link to a missing target, wanted a link to a folder"};
    }
  }
  TRAINYARD_TRY(make_directories(place.parent_path()));
  const std::string name = "." + place.filename().string() + ".lock";
  TRAINYARD_ASSIGN(FileLock lock, FileLock::acquire(place.parent_path() / name));
  return DatasetFolder(std::move(place), std::move(lock));
}

Status DatasetFolder::check_replaceable() const {
  TRAINYARD_ASSIGN(const bool is_there, path_exists(output_));
  if (!is_there) return {};
  std::error_code code;
  if (!fs::is_directory(output_, code)) return in_the_way(output_, "exists and is not a folder");
  // Said now, and not when all is built, on the disk around it.
  if (is_mount_point(output_)) {
    return Error{ErrorCode::kInvalidConfig,
                 "output: found " + output_.string() +
                     ", which is a mount point, wanted a folder in it: " +
                     (output_ / "set").string() + " for example"};
  }
  if (fs::is_empty(output_, code)) return {};
  const Result<DatasetManifest> manifest = read_manifest(output_);
  if (!manifest) {
    return in_the_way(output_, "exists and is not a data set (" + manifest.error().message + ")");
  }
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
      return in_the_way(output_, "holds '" + name + "', which does not belong to its data set");
  }
  if (code) return file_error("list " + output_.string(), code);
  return {};
}

Result<fs::path> DatasetFolder::begin() const {
  TRAINYARD_TRY(remove_leftovers(partial()));
  TRAINYARD_TRY(make_directories(partial()));
  return partial();
}

void DatasetFolder::discard() const {
  std::error_code ignored;
  fs::remove_all(partial(), ignored);
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
    const fs::path old = output_.parent_path() / ("." + output_.filename().string() + ".replaced");
    TRAINYARD_TRY(remove_leftovers(old));
    TRAINYARD_TRY(move_folder(output_, old));
    TRAINYARD_TRY(move_folder(partial(), output_));
    TRAINYARD_TRY(sync_directory(output_.parent_path()));
    return remove_tree(old);
  }
  TRAINYARD_TRY(sync_directory(output_.parent_path()));
  return remove_tree(partial());
}

}  // namespace trainyard::data

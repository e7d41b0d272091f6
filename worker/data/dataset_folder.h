#pragma once

#include <filesystem>

#include "common/base/error.h"
#include "common/io/file.h"
#include "worker/data/dataset_manifest.h"

namespace trainyard::data {

/// Whether something is mounted at `folder`: nothing can be renamed over that. False where the
/// system does not tell (before Linux 5.8).
bool is_mount_point(const std::filesystem::path& folder);

/// A data set being built beside the place where it is to appear. One at a time for each place.
class DatasetFolder {
 public:
  /// Locks `output` (a symbolic link: what it leads to) against other preparations. Errors:
  /// kConflict, kInvalidConfig, kIo.
  static Result<DatasetFolder> lock(const std::filesystem::path& output);

  /// Checks that commit() may put a data set at `output`: nothing is there, or an empty folder, or
  /// a data set with nothing else in it. Errors: kAlreadyExists naming what is in the way;
  /// kInvalidConfig for a mount point.
  Status check_replaceable() const;

  /// Empties the folder to build in and returns it: `output`.partial. Errors: kAlreadyExists where
  /// that holds what no preparation has left, kIo.
  Result<std::filesystem::path> begin() const;

  /// Removes what has been built: the disk may be full of it. Best effort.
  void discard() const;

  /// Writes dataset.json, syncs, and puts the built folder in the place of `output` in one step.
  Status commit(const DatasetManifest& manifest) const;

 private:
  DatasetFolder(std::filesystem::path output, FileLock lock)
      : output_(std::move(output)), lock_(std::move(lock)) {}
  std::filesystem::path partial() const { return output_.string() + ".partial"; }

  std::filesystem::path output_;
  FileLock lock_;
};

}  // namespace trainyard::data

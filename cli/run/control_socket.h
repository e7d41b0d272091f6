#pragma once

#include <filesystem>
#include <string>

#include "common/base/error.h"

namespace trainyard::cli {

/// The folder of a local run's control socket, 0700: RUN/control, so that a run that is killed
/// leaves nothing outside of its run directory and the next one listens where the agents that
/// outlived it look. On a file system without sockets a folder below TMPDIR or /tmp instead, its
/// path recorded in RUN/control-socket; then the next run finds and removes it.
class ControlSocketFolder {
 public:
  /// Makes the folder, or takes the one that is there if it is safe. Only under the run directory's
  /// lock. Errors: kInvalidConfig when neither place can hold a socket.
  static Result<ControlSocketFolder> prepare(const std::filesystem::path& run_dir);

  /// Removes what a killed run has left of it, where no pod lives any more. Under the lock.
  static void clean(const std::filesystem::path& run_dir);

  /// Makes the folder again where somebody has removed it. Errors: kIo; kConflict when something
  /// else stands in its place.
  Status restore() const;

  std::filesystem::path socket_path() const { return folder_ / "control.sock"; }

  /// Removes the folder and its record: when no agent is left that would look there.
  void remove();

 private:
  ControlSocketFolder(std::filesystem::path folder, std::filesystem::path record)
      : folder_(std::move(folder)), record_(std::move(record)) {}

  static Result<ControlSocketFolder> below_temporary(const std::filesystem::path& record);

  std::filesystem::path folder_;
  std::filesystem::path record_;
};

}  // namespace trainyard::cli

#pragma once

#include <filesystem>
#include <string>

#include "common/base/error.h"

namespace trainyard::cli {

/// The folder of a local run's control socket: 0700, below TMPDIR or /tmp (a run directory's own
/// path may be too long for a socket), its path recorded in RUN/control-socket. A run that was
/// killed leaves both, so that the next one listens where the agents that outlived it look.
class ControlSocketFolder {
 public:
  /// Takes the recorded folder if it is there and safe, else makes a new one. Only under the run
  /// directory's lock. Errors: kIo.
  static Result<ControlSocketFolder> prepare(const std::filesystem::path& run_dir);

  std::filesystem::path socket_path() const { return folder_ / "control.sock"; }

  /// Removes the folder and its record: when no agent is left that would look there.
  void remove();

 private:
  ControlSocketFolder(std::filesystem::path folder, std::filesystem::path record)
      : folder_(std::move(folder)), record_(std::move(record)) {}

  std::filesystem::path folder_;
  std::filesystem::path record_;
};

}  // namespace trainyard::cli

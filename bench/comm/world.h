#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bench/comm/case.h"
#include "bench/comm/process.h"
#include "common/base/error.h"

namespace trainyard::bench {

/// Processes that do one case after another together, and sleep in between, so that several worlds
/// can be measured in turns.
class World {
 public:
  virtual ~World() = default;
  /// "shm", "tcp", "local", "raw", "raw-bounded", "gloo".
  virtual const std::string& name() const = 0;
  /// The samples of all ranks. Errors: as a member says; kDeadline; kInternal for a member that
  /// ended, by name.
  virtual Result<std::vector<Sample>> run(const Case& one) = 0;
};

/// What a world is made of.
struct WorldOptions {
  /// The command that becomes a member when encode(MemberRole) follows it.
  std::vector<std::string> member_command;
  int ranks = 2;
  std::vector<int> ring;
};

/// A world of ours: shm, tcp, local, or a raw pair. Errors: kIo, or what a member says.
Result<std::unique_ptr<World>> start_world(const std::string& name, const WorldOptions& options);

/// PyTorch's gloo, run by this Python. Errors: kUnavailable where it has no torch or does not
/// start.
Result<std::unique_ptr<World>> start_gloo(const std::string& python, int ranks);

}  // namespace trainyard::bench

#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/base/time.h"
#include "common/log/log.h"

namespace trainyard::control {

/// The end of a rank process, as its agent saw it.
struct RankExit {
  int64_t generation = 0;
  std::string pod_name;
  int rank = -1;
  int exit_code = 0;  ///< meaningful when signal is 0
  int signal = 0;
  bool expected = false;  ///< the agent had asked for it
  std::vector<std::string> last_lines;
};

/// Tells the log of ranks that end: of each pod so many in a while one by one, of the rest how many
/// they were. An agent has no use for more lines, and whoever speaks in its place must not fill the
/// log. Not thread-safe.
class ExitLog {
 public:
  static constexpr int kLinesOfAPod = 64;
  static constexpr std::chrono::seconds kWhile{30};

  /// `logger` outlives it.
  explicit ExitLog(Logger& logger) : logger_(logger) {}

  void note(const std::string& pod_uid, const RankExit& exit, MonoTime now);
  /// Says of pods whose while is over how many ends were not told, and forgets them.
  void tell_rest(MonoTime now);

 private:
  struct Told {
    std::string pod_name;
    MonoTime since{};
    int lines = 0;
    int64_t untold = 0;
  };

  Logger& logger_;
  std::map<std::string, Told> told_;  ///< by UID of pods of which something was told of late
};

}  // namespace trainyard::control

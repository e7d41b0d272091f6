#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/unique_fd.h"

namespace trainyard::agent {

/// What one rank prints, kept in a file of bounded size and, its newest lines, in memory.
class RankLog {
 public:
  /// The file is `path`; when it has `limit_bytes` it becomes `path`.1 and a new one is begun. A
  /// file that cannot be written is done without: the newest lines are still kept.
  RankLog(std::filesystem::path path, int64_t limit_bytes);
  /// No file: lines go to standard output, each with a prefix.
  static RankLog to_standard_output(std::string prefix);

  void add_line(std::string_view line);

  /// The newest lines, oldest first, printable and bounded (kMaxLastLines of kMaxLastLineBytes).
  std::vector<std::string> last_lines() const { return {last_.begin(), last_.end()}; }

  static constexpr size_t kMaxLastLines = 20;
  static constexpr size_t kMaxLastLineBytes = 512;

 private:
  RankLog(UniqueFd stream, std::string prefix);
  void open();

  std::filesystem::path path_;  ///< empty: of a stream
  std::string prefix_;
  int64_t limit_bytes_ = 0;
  UniqueFd file_;
  int64_t size_bytes_ = 0;
  std::deque<std::string> last_;
};

}  // namespace trainyard::agent

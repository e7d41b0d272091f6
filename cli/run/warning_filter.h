#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace trainyard::cli {

/// Which of the ranks' warnings are shown. All ranks of a checkpoint tell of the same failure, and
/// a full disk fails each checkpoint: what differs in its numbers only is shown once, then when
/// there have been 8, 64, 512 ... of it in a row.
class WarningFilter {
 public:
  /// The warning as it is to be shown, with how many there have been; nullopt: not this time.
  std::optional<std::string> take(const std::string& message);

 private:
  std::string last_;
  std::string kind_;  ///< the last one without its digits
  int64_t count_ = 0;
  int64_t shown_at_ = 1;
};

}  // namespace trainyard::cli

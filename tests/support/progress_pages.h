#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "agent/progress_page.h"
#include "worker/rank/progress.h"

namespace trainyard::testing_support {

/// What the ranks' agents read of where these stand.
class ProgressPages {
 public:
  explicit ProgressPages(int ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      pages_.push_back(*agent::SharedProgressPage::create());
      progress_.push_back(*engine::Progress::map(pages_.back().fd()));
    }
  }
  engine::Progress& of(int rank) { return progress_[static_cast<size_t>(rank)]; }

  std::vector<int64_t> arrivals() const {
    std::vector<int64_t> all;
    for (const agent::SharedProgressPage& page : pages_)
      all.push_back(page.page().position.arrivals.load());
    return all;
  }

 private:
  std::vector<agent::SharedProgressPage> pages_;
  std::vector<engine::Progress> progress_;
};

/// Whether `hung` is before all others.
inline bool is_first(const std::vector<int64_t>& arrivals, int hung) {
  const int64_t its = arrivals[static_cast<size_t>(hung)];
  return std::count_if(arrivals.begin(), arrivals.end(),
                       [&](int64_t others) { return others <= its; }) == 1;
}

}  // namespace trainyard::testing_support

#pragma once

#include "common/base/error.h"
#include "common/base/unique_fd.h"
#include "common/worker_contract.h"

namespace trainyard::coordination {
class RankProgress;
}

namespace trainyard::agent {

/// The memory a rank reports its progress in: a sealed memfd that agent and rank map.
class SharedProgressPage {
 public:
  /// An empty page. Errors: kIo.
  static Result<SharedProgressPage> create();
  SharedProgressPage(SharedProgressPage&& other) noexcept;
  SharedProgressPage& operator=(SharedProgressPage&& other) noexcept;
  ~SharedProgressPage();

  /// What the rank inherits.
  int fd() const { return fd_.get(); }
  contract::ProgressPage& page() const { return *page_; }

 private:
  SharedProgressPage(UniqueFd fd, contract::ProgressPage* page);
  UniqueFd fd_;
  contract::ProgressPage* page_ = nullptr;
};

/// Brings `progress`, a reading before or a fresh one, up to date; all fields but `rank`. The
/// fields under `sequence` come from one update of the rank; while the rank is in the middle of one
/// (it may have been preempted there) they keep the values they had. A page that the rank has not
/// opened yet (no magic) reads as a rank that is starting.
void read_progress(const contract::ProgressPage& page, coordination::RankProgress& progress);

}  // namespace trainyard::agent

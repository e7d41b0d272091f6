#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "common/base/error.h"
#include "worker/comm/communicator.h"

namespace trainyard::engine {

/// Collectives of one value under way, one per sequence. Allocates nothing once made.
class PendingWorks {
 public:
  /// Waits for a collective and releases its handle.
  using Wait = std::function<Status(comm::WorkPtr& work)>;

  explicit PendingWorks(Wait wait) : wait_(std::move(wait)) { works_.reserve(kMost); }
  /// Waits for what an error has left under way: it works on memory that goes away next.
  ~PendingWorks() {
    for (comm::WorkPtr& work : works_) {
      if (work) (void)work->wait();
    }
  }
  PendingWorks(const PendingWorks&) = delete;
  PendingWorks& operator=(const PendingWorks&) = delete;

  /// Also waits, where so many are under way that a group would soon refuse more.
  /// Errors: those of the wait.
  Status add(comm::WorkPtr work) {
    works_.push_back(std::move(work));
    return works_.size() == kMost ? wait_for_all() : Status();
  }

  /// Errors: those of the wait.
  Status wait_for_all() {
    for (comm::WorkPtr& work : works_)
      TRAINYARD_TRY(wait_(work));
    works_.clear();
    return {};
  }

 private:
  static constexpr size_t kMost = 1024;

  Wait wait_;
  std::vector<comm::WorkPtr> works_;
};

}  // namespace trainyard::engine

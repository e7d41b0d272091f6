#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "worker/checkpoint/commit_group.h"

namespace trainyard::checkpoint::testing {

/// What the ranks of one group, each a thread of the test, share: a rendezvous for each call.
class Meeting {
 public:
  explicit Meeting(int size) : slots_(static_cast<size_t>(size)) {}

  /// Every rank brings a text; all return with everybody's. Errors: kDeadline after 20 s.
  Result<std::vector<std::string>> exchange(int rank, std::string text) {
    std::unique_lock lock(mutex_);
    slots_[static_cast<size_t>(rank)] = std::move(text);
    const int64_t round = round_;
    if (++arrived_ == static_cast<int>(slots_.size())) {
      result_ = slots_;
      arrived_ = 0;
      ++round_;
      all_here_.notify_all();
      return result_;
    }
    if (!all_here_.wait_for(lock, std::chrono::seconds(60), [&] { return round_ != round; })) {
      return Error{ErrorCode::kDeadline, "another rank of the test did not come"};
    }
    return result_;
  }
  int size() const { return static_cast<int>(slots_.size()); }

 private:
  std::mutex mutex_;
  std::condition_variable all_here_;
  std::vector<std::string> slots_;
  std::vector<std::string> result_;
  int arrived_ = 0;
  int64_t round_ = 0;
};

class ThreadGroup final : public CommitGroup {
 public:
  ThreadGroup(Meeting& meeting, int rank) : meeting_(meeting), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return meeting_.size(); }
  Result<std::vector<std::string>> gather(std::string own_record) override {
    TRAINYARD_ASSIGN(auto all, meeting_.exchange(rank_, std::move(own_record)));
    if (rank_ != 0) all.clear();
    return all;
  }
  Result<std::string> broadcast(std::string from_rank_0) override {
    TRAINYARD_ASSIGN(auto all, meeting_.exchange(rank_, std::move(from_rank_0)));
    return all[0];
  }
  Result<bool> any(bool failed) override {
    TRAINYARD_ASSIGN(const auto all, meeting_.exchange(rank_, failed ? "1" : ""));
    for (const std::string& one : all) {
      if (!one.empty()) return true;
    }
    return false;
  }

 private:
  Meeting& meeting_;
  int rank_;
};

/// Runs `body(group)` on `size` threads, one a rank, and joins them.
inline void run_ranks(int size, const std::function<void(CommitGroup&)>& body) {
  Meeting meeting(size);
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.emplace_back([&, rank] {
      ThreadGroup group(meeting, rank);
      body(group);
    });
  }
}

}  // namespace trainyard::checkpoint::testing

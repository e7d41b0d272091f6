#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace trainyard::comm {

/// What a rank that makes no progress tells the others.
struct WaitReport {
  std::vector<int> ranks;  ///< awaited, of the world; empty: it waits no longer

  bool operator==(const WaitReport&) const = default;
};

/// Carries reports to the other ranks, apart from the data. Thread-safe; never blocks.
class WaitReporter {
 public:
  virtual ~WaitReporter() = default;
  virtual void send_waiting(const WaitReport& report) = 0;
};

/// Which rank waits for which, over all groups in which a rank meets others: a rank that waits in
/// one group for a rank that waits in another is not to blame for that one. One for each rank and
/// the groups that wait together; ranks are those of the world. Thread-safe.
class WaitBoard {
 public:
  explicit WaitBoard(int own_rank) : own_rank_(own_rank) {}

  /// What carries reports from now on; null: nothing does.
  void attach(std::shared_ptr<WaitReporter> reporter);

  /// A thread of this rank now waits in `group` for these ranks (empty: it goes on). Told to the
  /// others where they know of a wait, or one of them waits for this rank.
  void set_waiting(uint64_t group, const std::vector<int>& ranks);
  /// Tells the others whom this rank waits for.
  void announce();
  /// What `rank` announces.
  void on_waiting(int rank, const WaitReport& report);

  /// Of ranks awaited without progress, those to blame: whoever announced that it waits itself is
  /// replaced by whom it waits for. This rank is among them where one waits for it and it does not
  /// wait. Ascending; `awaited` where all wait for each other.
  std::vector<int> blamed(const std::vector<int>& awaited) const;

 private:
  WaitReport own_report() const;  ///< under the lock

  const int own_rank_;
  mutable std::mutex mutex_;
  std::shared_ptr<WaitReporter> reporter_;
  std::map<uint64_t, std::vector<int>> own_;  ///< by group; those that wait alone
  std::map<int, WaitReport> peers_;
  bool announced_ = false;
};

}  // namespace trainyard::comm

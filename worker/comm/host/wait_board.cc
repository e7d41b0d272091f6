#include "worker/comm/host/wait_board.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

namespace trainyard::comm {
namespace {

bool names(const WaitReport& report, int rank) {
  return std::find(report.ranks.begin(), report.ranks.end(), rank) != report.ranks.end();
}

}  // namespace

void WaitBoard::attach(std::shared_ptr<WaitReporter> reporter) {
  std::shared_ptr<WaitReporter> before;  // goes without the lock
  const std::lock_guard lock(mutex_);
  before = std::exchange(reporter_, std::move(reporter));
}

WaitReport WaitBoard::own_report() const {
  std::set<int> ranks;
  for (const auto& [group, awaited] : own_)
    ranks.insert(awaited.begin(), awaited.end());
  return {{ranks.begin(), ranks.end()}};
}

void WaitBoard::set_waiting(uint64_t group, const std::vector<int>& ranks) {
  bool tell = false;
  {
    const std::lock_guard lock(mutex_);
    if (ranks.empty()) {
      own_.erase(group);
    } else {
      own_[group] = ranks;
    }
    const bool is_asked =
        !own_.empty() && std::any_of(peers_.begin(), peers_.end(), [&](const auto& peer) {
          return names(peer.second, own_rank_);
        });
    tell = announced_ || is_asked;
  }
  if (tell) announce();
}

void WaitBoard::announce() {
  std::optional<WaitReport> sent;
  while (true) {
    std::shared_ptr<WaitReporter> reporter;
    WaitReport report;
    {
      const std::lock_guard lock(mutex_);
      reporter = reporter_;
      report = own_report();
      announced_ = !report.ranks.empty();
    }
    // Another thread may have sent a newer report before this one's: whoever sends last looks
    // again.
    if (!reporter || sent == report) return;
    reporter->send_waiting(report);
    sent = std::move(report);
  }
}

void WaitBoard::on_waiting(int rank, const WaitReport& report) {
  bool answer = false;
  {
    const std::lock_guard lock(mutex_);
    peers_[rank] = report;
    answer = names(report, own_rank_) && !own_.empty() && !announced_;
  }
  if (answer) announce();
}

std::vector<int> WaitBoard::blamed(const std::vector<int>& awaited) const {
  const std::lock_guard lock(mutex_);
  std::set<int> seen;
  std::set<int> silent;
  std::vector<int> open = awaited;
  while (!open.empty()) {
    const int rank = open.back();
    open.pop_back();
    if (!seen.insert(rank).second) continue;
    if (rank == own_rank_) {
      if (own_.empty()) silent.insert(rank);
      continue;
    }
    const auto peer = peers_.find(rank);
    if (peer == peers_.end() || peer->second.ranks.empty()) {
      silent.insert(rank);
    } else {
      open.insert(open.end(), peer->second.ranks.begin(), peer->second.ranks.end());
    }
  }
  if (silent.empty()) silent.insert(awaited.begin(), awaited.end());
  return {silent.begin(), silent.end()};
}

}  // namespace trainyard::comm

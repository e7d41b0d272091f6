#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <stop_token>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "common/base/clock.h"
#include "common/log/log.h"
#include "operator/kube/client.h"

namespace trainyard::operator_runtime {

/// One leader among several processes, by a Lease object. The times are client-go's: a lease is
/// held for 15 s, renewed every 2 s, given up by its holder when it could not be renewed for 10 s;
/// others wait 2 s to 4.4 s between tries. Whoever has seen a Lease counts on from its transitions
/// where it was deleted or counts fewer meanwhile. A lease is no fence: whoever holds it writes
/// with preconditions all the same.
class LeaderElection {
 public:
  struct Options {
    const kube::Client* client = nullptr;  ///< without a rate limit, calls end within seconds
    const Clock* clock = nullptr;
    Logger* logger = nullptr;
    std::string ns;
    std::string name;
    std::string identity;            ///< of this process, unique
    std::function<double()> random;  ///< uniform in [0, 1)
    std::chrono::seconds lease{15};
    Duration renew_deadline = std::chrono::seconds(10);
    Duration retry = std::chrono::seconds(2);
  };
  enum class End { kStopped, kLost };

  /// What the options point to outlives it.
  explicit LeaderElection(Options options);

  /// Waits to become the leader, calls `on_leading` (which must not block), and keeps the lease
  /// until `stop` is requested or it is lost. The lease stays held then: call release() when the
  /// work has ended. One call at a time.
  End run(const std::stop_token& stop, const std::function<void()>& on_leading);

  /// Gives the lease up, so that another takes over at once. Without effect for who has none.
  void release();

  bool is_leader() const { return leading_; }
  /// Whether nobody else can lead now: this process leads, and the request that has renewed its
  /// lease was made less than `renew_deadline` ago. A process that was stopped for a while hears
  /// false before anybody has told it that its lease is another's. Thread-safe.
  bool holds() const;
  /// Lease transitions counted when this process became the leader; 0 before.
  int64_t transitions() const { return transitions_; }

  /// One try to take or to renew the lease; for run() and for tests.
  bool try_acquire_or_renew();

 private:
  bool create(const nlohmann::json& spec);
  nlohmann::json record(int64_t transitions, const nlohmann::json& before) const;
  bool note(const kube::ApiResult<nlohmann::json>& reply);
  bool renew(const std::stop_token& stop);

  const Options options_;
  std::atomic<bool> leading_ = false;
  std::atomic<int64_t> transitions_ = 0;
  std::atomic<MonoTime> renewed_{};  ///< when the last request that succeeded was made
  // Of the thread in run() only.
  int64_t highest_seen_ = -1;  ///< transitions of the Lease; -1: none was there
  std::string seen_record_;    ///< spec of the Lease as last seen
  MonoTime seen_at_{};         ///< by our own clock: clocks of machines differ
  std::string last_error_;     ///< told once
};

}  // namespace trainyard::operator_runtime

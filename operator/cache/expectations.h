#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/base/clock.h"

namespace trainyard::cache {

/// A creation that the server has accepted and the cache has not shown yet.
struct Expected {
  std::string name;
  std::string uid;  ///< empty while the answer is awaited or was lost
  MonoTime since{};
  std::optional<MonoTime> answered;
};

/// Creations not yet visible in the cache, by job, so that a stale cache never makes an object
/// twice. One instance a kind of object. Thread-safe. An expectation ends when the cache shows the
/// object, when the creation fails, when a list that began after it does not show the object (it is
/// gone again), or after the time limit: a lost event must not stop a job for ever.
class Expectations {
 public:
  /// client-go's ExpectationsTimeout.
  static constexpr Duration kTimeLimit = std::chrono::minutes(5);

  explicit Expectations(const Clock& clock, Duration time_limit = kTimeLimit);

  /// Call before the create is sent: its event may come before its answer.
  void expect(const std::string& job, const std::string& name);
  /// The create was answered. No effect where the cache has shown the object meanwhile.
  void created(const std::string& job, const std::string& name, const std::string& uid);
  /// The create was refused for certain: nothing will come. Not for lost answers.
  void failed(const std::string& job, const std::string& name);
  /// The cache shows an object of this name (or its end).
  void seen(const std::string& job, const std::string& name);
  /// A list that was asked for at `started` is in the cache: creations answered before that are
  /// visible, or their objects are gone. (Their names are to be `seen` first.) The jobs of the
  /// latter, which no event tells of.
  std::set<std::string> listed(MonoTime started);
  /// The job is gone.
  void forget(const std::string& job);

  /// What is still awaited of a job, by name.
  std::vector<Expected> pending(const std::string& job);
  /// When the first of them ends by time, which nobody is told of; nothing where none is pending.
  /// A time that is over where one has ended since pending() was asked.
  std::optional<MonoTime> first_end(const std::string& job) const;
  /// Jobs with something pending.
  size_t jobs() const;

 private:
  using Names = std::map<std::string, Expected>;
  void drop(const std::string& job, const std::string& name);
  void drop_expired_locked(const std::string& job);

  const Clock& clock_;
  const Duration time_limit_;
  mutable std::mutex mutex_;
  std::map<std::string, Names> jobs_;
};

}  // namespace trainyard::cache

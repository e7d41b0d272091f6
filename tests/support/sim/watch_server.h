#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "common/base/clock.h"
#include "common/base/error.h"
#include "tests/support/sim/store.h"

namespace trainyard::sim {

/// The watch caches of one API server, one a resource: what its watchers can know by now. They
/// follow the store with a lag, and may be held.
class WatchServer {
 public:
  /// Both outlive it.
  WatchServer(const Store& store, const Clock& clock) : store_(store), clock_(clock) {}

  /// How far behind the store all caches follow from now on.
  void set_lag(Duration lag) { lag_ = lag; }
  /// The cache of this resource stands still until then.
  void hold(const std::string& plural, MonoTime until);
  /// All caches go on.
  void release();

  /// Revision up to which the cache of this resource has seen the store. It never goes back.
  int64_t seen(const std::string& plural);
  /// When it will have seen more; nullopt where there is no more.
  std::optional<MonoTime> next_sight(const std::string& plural);

 private:
  struct Cache {
    int64_t seen = 0;
    MonoTime held_until{};
  };

  const Store& store_;
  const Clock& clock_;
  Duration lag_{0};
  std::map<std::string, Cache> caches_;
};

/// One open watch.
class WatchStream {
 public:
  struct Options {
    std::string plural;
    std::string ns;
    std::string selector;
    int64_t after = 0;  ///< revision
    std::chrono::seconds timeout{300};
    Duration idle{0};
  };
  using Line = Result<std::optional<std::string>>;

  /// All outlive it.
  WatchStream(const Store& store, WatchServer& server, const Clock& clock, Options options);

  /// Whether next_line() would not have to wait.
  bool is_ready();
  /// Whether what it would give is an event of an object.
  bool has_event();
  /// What comes next; a stream that is not ready is one that fell silent: kDeadline.
  Line next_line();
  /// When it is ready at the latest though nothing changes.
  MonoTime next_due();
  /// The connection is cut within a line.
  void cut() { state_ = State::kCut; }
  /// The server tells that the version is lost.
  void expire() { state_ = State::kExpired; }
  /// Nothing comes any more, not even an end.
  void fall_silent() { state_ = State::kSilent; }

 private:
  enum class State { kOpen, kCut, kExpired, kSilent };

  /// The next change that the watcher sees, position_ before it; nullptr where there is none yet.
  const Change* find_next();
  std::string event_line(const Change& change);
  std::string bookmark_line();

  const Store& store_;
  WatchServer& server_;
  const Clock& clock_;
  const Options options_;
  State state_ = State::kOpen;
  int64_t position_;
  MonoTime opened_;
  MonoTime heard_;
  MonoTime bookmark_at_;
};

}  // namespace trainyard::sim

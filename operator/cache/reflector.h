#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>

#include "common/base/clock.h"
#include "common/log/log.h"
#include "operator/cache/backoff.h"
#include "operator/cache/sink.h"
#include "operator/kube/client.h"

namespace trainyard::cache {

/// Where a reflector stands.
enum class ReflectorState {
  kEmpty,       ///< nothing is known: list from the beginning
  kInitPage,    ///< between two pages of a list
  kInitListed,  ///< a whole list is in the sink, no watch is open
  kWatching,
};

/// "Empty", "InitPage", "InitListed", "Watching".
std::string_view name_of(ReflectorState state);

/// What becomes of somebody who may not read the objects.
enum class Right {
  kNeeded,   ///< each refusal is a warning
  kWelcome,  ///< goes on without them, and asks quietly
};

/// For metrics and readiness.
struct ReflectorReport {
  ReflectorState state = ReflectorState::kEmpty;
  int64_t lists = 0;                      ///< begun
  int64_t watches = 0;                    ///< opened
  int64_t events = 0;                     ///< without bookmarks
  std::optional<kube::ApiError> failure;  ///< since the last success, if any
};

/// Keeps a sink equal to one collection of the server, by list and watch. The states and their
/// arrows are those of kube-rs's watcher, the times those of client-go's Reflector:
///
///   Empty       -> InitPage | InitListed   the first page of a list came (all of it)
///   InitPage    -> InitPage | InitListed   a further page
///   InitPage    -> Empty                   the list is lost, or a page refused again and again
///   InitListed  -> Watching                a watch was opened
///   InitListed  -> Empty                   the version is lost
///   Watching    -> Watching                an event
///   Watching    -> InitListed              the watch ended or was cut off: goes on there
///   Watching    -> Empty                   the version is lost (410), or two watches in a row
///                                          gave nothing but a failure
///
/// Lists ask for the newest state, never for what a server happens to have cached, so that nothing
/// goes back in time when the server changes. A list that shows an older state all the same is
/// refused, unless it comes again and again: then the server has been restored to it. Every failure
/// is followed by a pause, and by as long a one as the server asks for.
class Reflector {
 public:
  struct Options {
    kube::Resource resource;
    std::string ns;  ///< empty: all
    std::string label_selector;
    std::string field_selector;
    Right right = Right::kNeeded;
    kube::Parts parts = kube::Parts::kAll;
    int64_t page_size = 500;  ///< at first; a quarter of it where pages are too large to be read
    std::chrono::seconds watch_min{300};  ///< the server is asked to end a watch after a
    std::chrono::seconds watch_max{600};  ///< random time between these
    /// A watch that is silent for so long is dead: bookmarks come about each minute.
    Duration idle = std::chrono::minutes(2);
    Backoff::Options backoff;
    /// Uniform in [0, 1), for the pauses and times above. Called from the reflector's thread.
    std::function<double()> random;
  };

  /// Client, sink, clock and logger outlive it. Lists wait for turns of the client's limiter.
  Reflector(const kube::Client& client, Sink& sink, const Clock& clock, Logger& logger,
            Options options);

  /// Steps until the stop, which also ends an open watch; a page under way ends with the client's
  /// own stop or time-out. One thread.
  void run(const std::stop_token& stop);

  /// One arrow: a page, the opening of a watch, or one event; and how long to pause before the
  /// next. What run() repeats. One thread.
  Duration step(const std::stop_token& stop);

  /// From any thread.
  ReflectorReport report() const;
  /// What it keeps in view. From any thread.
  const kube::Resource& resource() const { return options_.resource; }

 private:
  Duration read_page();
  bool goes_back(const kube::ListPage& page);
  Duration open_watch(const std::stop_token& stop);
  Duration read_event();
  Duration take_event(const kube::WatchEvent& event);
  Duration fail(ReflectorState next, const kube::ApiError& error, std::string_view what);
  void enter(ReflectorState state);

  const kube::Client& client_;
  Sink& sink_;
  const Clock& clock_;
  Logger& logger_;
  const Options options_;
  Backoff backoff_;

  ReflectorState state_ = ReflectorState::kEmpty;
  int64_t page_size_;
  std::string next_page_;
  MonoTime list_started_{};
  std::string resource_version_;  ///< up to which the sink is
  std::optional<kube::Watch> watch_;
  bool heard_ = false;         ///< the open watch gave something
  int fruitless_watches_ = 0;  ///< opened in a row that gave nothing but a failure
  int old_lists_ = 0;          ///< refused in a row
  int failed_pages_ = 0;       ///< tries of the present page
  MonoTime watch_opened_{};

  mutable std::mutex mutex_;
  ReflectorReport report_;
};

}  // namespace trainyard::cache

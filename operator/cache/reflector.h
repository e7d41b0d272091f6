#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>

#include "common/base/clock.h"
#include "common/log/log.h"
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

/// Keeps a sink equal to one collection of the server, by list and watch. The states and their
/// arrows are those of kube-rs's watcher, the times those of client-go's Reflector.
class Reflector {
 public:
  struct Options {
    kube::Resource resource;
    std::string ns;  ///< empty: all
    std::string label_selector;
    std::string field_selector;
    int64_t page_size = 500;
    Duration watch_min = std::chrono::minutes(5);   ///< the server is asked to end a watch after a
    Duration watch_max = std::chrono::minutes(10);  ///< random time between these
    /// A watch that is silent for so long is dead: bookmarks come about each minute.
    Duration idle = std::chrono::minutes(2);
    Duration backoff_initial = std::chrono::milliseconds(800);
    Duration backoff_max = std::chrono::seconds(30);
    Duration backoff_reset = std::chrono::minutes(2);  ///< after so long without a failure
    /// Uniform in [0, 1), for jitter.
    std::function<double()> random;
  };

  /// Client, sink, clock and logger outlive it. The client's calls for lists wait for its limiter.
  Reflector(const kube::Client& client, Sink& sink, const Clock& clock, Logger& logger,
            Options options);
  ~Reflector();

  /// Runs until the stop; returns at once then. One thread.
  void run(std::stop_token stop);

  /// One arrow: a page, the opening of a watch, or one event, and how long to pause before the
  /// next. For run() and for tests. One thread.
  Duration step(std::stop_token stop);

  /// From any thread.
  ReflectorState state() const;
  /// Lists begun so far, and watches opened; from any thread.
  int64_t lists_begun() const;
  int64_t watches_opened() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trainyard::cache

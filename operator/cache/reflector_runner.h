#pragma once

#include <map>
#include <mutex>
#include <thread>

#include "operator/cache/reflector.h"

namespace trainyard::cache {

/// Who makes reflectors go on: the one place where the cache has threads, so that a test may step
/// them in an order of its own. Thread-safe. Reflectors outlive their time between start and stop.
class ReflectorRunner {
 public:
  virtual ~ReflectorRunner() = default;

  /// Has the reflector step again and again from now on. Once a reflector.
  virtual void start(Reflector& reflector) = 0;
  /// Ends that: no step of it is running any more when this returns. Without effect for a reflector
  /// that was not started.
  virtual void stop(Reflector& reflector) = 0;
};

/// A thread for each reflector.
class ThreadRunner final : public ReflectorRunner {
 public:
  void start(Reflector& reflector) override;
  void stop(Reflector& reflector) override;

 private:
  std::mutex mutex_;
  std::map<Reflector*, std::jthread> threads_;  ///< guarded by mutex_
};

}  // namespace trainyard::cache

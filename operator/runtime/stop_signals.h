#pragma once

#include <stop_token>

#include "common/log/log.h"

namespace trainyard::operator_runtime {

/// SIGTERM and SIGINT as a stop token, as far as the parent has left them to this process
/// (takes_signal). Made before any thread is: the signals are blocked in all of
/// them and taken by one that waits. SIGPIPE is ignored: a peer that has left is an error like
/// others.
class StopSignals {
 public:
  StopSignals();

  /// Requested when a signal has come.
  std::stop_token stop() const { return stop_.get_token(); }
  /// Waits for signals until `over` is requested.
  void watch(const std::stop_token& over, Logger& logger);

 private:
  std::stop_source stop_;
};

}  // namespace trainyard::operator_runtime

#pragma once

#include <span>

#include "worker/trace/span.h"

namespace trainyard::trace {

/// How much of a rank's communication ran while it computed.
struct Overlap {
  int64_t communication_ns = 0;  ///< time with a collective in progress
  int64_t exposed_ns = 0;        ///< of it, time in which the training thread waited for one
  /// Share of the communication that cost the step nothing: 1 - exposed / communication; 0 without
  /// communication.
  double hidden() const;
};

/// `collectives`: kCollective spans of a communicator's track. `step`: spans of Track::kStep, of
/// which only kCommunicationWait and kPipelineWait count. Spans may overlap and come in any order.
/// Pure.
Overlap overlap_of(std::span<const Span> collectives, std::span<const Span> step);

}  // namespace trainyard::trace

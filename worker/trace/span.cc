#include "worker/trace/span.h"

#include <algorithm>
#include <chrono>

#include "common/base/check.h"

namespace trainyard::trace {

std::string_view name_of(Activity activity) {
  static constexpr std::array<std::string_view, kActivities> kNames = {"step",
                                                                       "evaluate",
                                                                       "checkpoint_wait",
                                                                       "forward",
                                                                       "recompute",
                                                                       "backward_input",
                                                                       "backward_weight",
                                                                       "reduce",
                                                                       "accumulate",
                                                                       "all_reduce",
                                                                       "round",
                                                                       "reduce_control",
                                                                       "gather",
                                                                       "free",
                                                                       "optimize",
                                                                       "snapshot",
                                                                       "send_activation",
                                                                       "receive_activation",
                                                                       "send_gradient",
                                                                       "receive_gradient",
                                                                       "data_wait",
                                                                       "communication_wait",
                                                                       "pipeline_wait",
                                                                       "collective",
                                                                       "checkpoint_write",
                                                                       "checkpoint_commit"};
  return kNames[static_cast<size_t>(activity)];
}

std::string_view name_of(Track track) {
  static constexpr std::array<std::string_view, kTracks> kNames = {"training step",
                                                                   "collectives (data group)",
                                                                   "collectives (checkpoint group)",
                                                                   "checkpoint writer",
                                                                   "collectives (shard group)",
                                                                   "collectives (replica group)",
                                                                   "collectives (tied tables)",
                                                                   "activations in",
                                                                   "activations out",
                                                                   "gradients in",
                                                                   "gradients out",
                                                                   "collectives (tensor group)",
                                                                   "collectives (slices)",
                                                                   "collectives (context group)",
                                                                   "GPU"};
  return kNames[static_cast<size_t>(track)];
}

int64_t monotonic_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void SpanFan::connect(SpanSink* sink) {
  if (sink == nullptr) return;
  TRAINYARD_CHECK(count_ < kSinksMax);
  sinks_[count_++] = sink;
}

bool SpanFan::wants(Track track) const {
  const auto end = sinks_.begin() + static_cast<std::ptrdiff_t>(count_);
  return std::any_of(sinks_.begin(), end, [&](const SpanSink* sink) { return sink->wants(track); });
}

void SpanFan::add(Track track, const Span& span) {
  for (size_t i = 0; i < count_; ++i)
    sinks_[i]->add(track, span);
}

}  // namespace trainyard::trace

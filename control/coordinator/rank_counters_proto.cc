#include "control/coordinator/rank_counters_proto.h"

#include <algorithm>

#include "common/proto/coordination.pb.h"

namespace trainyard::control {
namespace {

void store_durations(const contract::DurationReading& reading, coordination::Durations& message) {
  for (const int64_t count : reading.buckets)
    message.add_buckets(count);
  message.set_nanoseconds(reading.nanoseconds);
}

/// Copies what both have.
template <class List, class Array>
void copy_common(const List& from, Array& to) {
  const auto count = std::min<int>(from.size(), static_cast<int>(to.size()));
  std::copy_n(from.begin(), count, to.begin());
}

contract::DurationReading load_durations(const coordination::Durations& message) {
  contract::DurationReading reading;
  copy_common(message.buckets(), reading.buckets);
  reading.nanoseconds = message.nanoseconds();
  return reading;
}

}  // namespace

void store(const contract::RankCountersReading& reading, coordination::RankCounters& message) {
  message.Clear();
  message.set_tokens_trained(reading.tokens_trained);
  message.set_steps_skipped(reading.steps_skipped);
  store_durations(reading.step, *message.mutable_step());
  for (const contract::DurationReading& stage : reading.stages)
    store_durations(stage, *message.add_stages());
  for (const contract::CollectiveReading& kind : reading.collectives) {
    coordination::CollectiveCounters& counters = *message.add_collectives();
    counters.set_operations(kind.operations);
    counters.set_nanoseconds(kind.nanoseconds);
    counters.set_bytes_sent(kind.bytes_sent);
    counters.set_bytes_received(kind.bytes_received);
  }
  for (const int64_t bytes : reading.memory_bytes)
    message.add_memory_bytes(bytes);
  message.set_resident_bytes(reading.resident_bytes);
}

contract::RankCountersReading load(const coordination::RankCounters& message) {
  contract::RankCountersReading reading;
  reading.tokens_trained = message.tokens_trained();
  reading.steps_skipped = message.steps_skipped();
  reading.step = load_durations(message.step());
  const size_t stages = std::min<size_t>(message.stages().size(), reading.stages.size());
  for (size_t i = 0; i < stages; ++i)
    reading.stages[i] = load_durations(message.stages(static_cast<int>(i)));
  const size_t kinds = std::min<size_t>(message.collectives().size(), reading.collectives.size());
  for (size_t i = 0; i < kinds; ++i) {
    const coordination::CollectiveCounters& counters = message.collectives(static_cast<int>(i));
    reading.collectives[i] = {.operations = counters.operations(),
                              .nanoseconds = counters.nanoseconds(),
                              .bytes_sent = counters.bytes_sent(),
                              .bytes_received = counters.bytes_received()};
  }
  copy_common(message.memory_bytes(), reading.memory_bytes);
  reading.resident_bytes = message.resident_bytes();
  contract::bound(reading);
  return reading;
}

}  // namespace trainyard::control

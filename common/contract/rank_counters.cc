#include "common/contract/rank_counters.h"

#include <algorithm>
#include <numeric>

namespace trainyard::contract {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
/// Observations in a bucket, operations: 10^15.
constexpr int64_t kMaxCount = int64_t{1} << 50;
/// Nanoseconds (36 years), bytes, tokens.
constexpr int64_t kMaxAmount = int64_t{1} << 60;

void clamp(int64_t& value, int64_t limit) { value = std::clamp<int64_t>(value, 0, limit); }

void bound_durations(DurationReading& reading) {
  for (int64_t& count : reading.buckets)
    clamp(count, kMaxCount);
  clamp(reading.nanoseconds, kMaxAmount);
}

/// For the one writer: no locked instruction.
void add(std::atomic<int64_t>& counter, int64_t amount) {
  counter.store(counter.load(kRelaxed) + amount, kRelaxed);
}

DurationReading read(const DurationCounters& counters) {
  DurationReading reading;
  for (size_t i = 0; i < kDurationBuckets; ++i)
    reading.buckets[i] = counters.buckets[i].load(kRelaxed);
  reading.nanoseconds = counters.nanoseconds.load(kRelaxed);
  return reading;
}

CollectiveReading read(const CollectiveCounters& counters) {
  return {.operations = counters.operations.load(kRelaxed),
          .nanoseconds = counters.nanoseconds.load(kRelaxed),
          .bytes_sent = counters.bytes_sent.load(kRelaxed),
          .bytes_received = counters.bytes_received.load(kRelaxed)};
}

}  // namespace

std::string_view name_of(Stage stage) {
  switch (stage) {
    case Stage::kDataWait:
      return "data_wait";
    case Stage::kForward:
      return "forward";
    case Stage::kBackward:
      return "backward";
    case Stage::kCollectiveWait:
      return "collective_wait";
    case Stage::kOptimizer:
      return "optimizer";
    case Stage::kEvaluation:
      return "evaluation";
    case Stage::kCheckpoint:
      return "checkpoint";
    case Stage::kOther:
      return "other";
    case Stage::kPipelineWait:
      return "pipeline_wait";
  }
  return "?";
}

std::string_view name_of(MemoryPurpose purpose) {
  switch (purpose) {
    case MemoryPurpose::kParameters:
      return "parameters";
    case MemoryPurpose::kOptimizer:
      return "optimizer";
    case MemoryPurpose::kGradients:
      return "gradients";
    case MemoryPurpose::kActivations:
      return "activations";
    case MemoryPurpose::kKernelScratch:
      return "kernel_scratch";
  }
  return "?";
}

size_t duration_bucket(int64_t nanoseconds) {
  const double seconds = static_cast<double>(nanoseconds) / 1e9;
  const auto* at = std::lower_bound(kDurationBounds_s.begin(), kDurationBounds_s.end(), seconds);
  return static_cast<size_t>(at - kDurationBounds_s.begin());
}

void observe(DurationCounters& counters, int64_t nanoseconds) {
  add(counters.buckets[duration_bucket(nanoseconds)], 1);
  add(counters.nanoseconds, nanoseconds);
}

int64_t DurationReading::count() const {
  return std::accumulate(buckets.begin(), buckets.end(), int64_t{0});
}

void bound(RankCountersReading& reading) {
  clamp(reading.tokens_trained, kMaxAmount);
  clamp(reading.steps_skipped, kMaxCount);
  bound_durations(reading.step);
  for (DurationReading& stage : reading.stages)
    bound_durations(stage);
  for (CollectiveReading& kind : reading.collectives) {
    clamp(kind.operations, kMaxCount);
    clamp(kind.nanoseconds, kMaxAmount);
    clamp(kind.bytes_sent, kMaxAmount);
    clamp(kind.bytes_received, kMaxAmount);
  }
  for (int64_t& bytes : reading.memory_bytes)
    clamp(bytes, kMaxAmount);
  clamp(reading.resident_bytes, kMaxAmount);
}

RankCountersReading read_counters(const RankCounters& counters) {
  RankCountersReading reading;
  if (counters.version.load(std::memory_order_acquire) != kRankCountersVersion) return reading;
  reading.tokens_trained = counters.tokens_trained.load(kRelaxed);
  reading.steps_skipped = counters.steps_skipped.load(kRelaxed);
  reading.step = read(counters.step);
  for (size_t i = 0; i < kStages; ++i)
    reading.stages[i] = read(counters.stages[i]);
  for (size_t i = 0; i < kCollectives; ++i)
    reading.collectives[i] = read(counters.collectives[i]);
  for (size_t i = 0; i < kMemoryPurposes; ++i)
    reading.memory_bytes[i] = counters.memory_bytes[i].load(kRelaxed);
  bound(reading);
  return reading;
}

}  // namespace trainyard::contract

#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

/// What a rank counts in its progress page for whoever measures it: fixed in size, written by the
/// rank alone with plain stores, read by anybody at any time. Every counter begins at zero with the
/// process and never falls.
namespace trainyard::contract {

/// What the training thread of a rank spends its time on; every moment of training is in one.
enum class Stage : uint32_t {
  kDataWait = 0,        ///< for the next micro-batch
  kForward = 1,         ///< layers forward
  kBackward = 2,        ///< gradients of inputs and parameters
  kCollectiveWait = 3,  ///< for a reduction or a gather that the step cannot go on without
  kOptimizer = 4,       ///< rounding of gradients, norm, clip, update
  kEvaluation = 5,      ///< held-out windows
  kCheckpoint = 6,      ///< the stall: snapshot, and the wait for a checkpoint still being written
  kOther = 7,           ///< what is left of the loop
  kPipelineWait = 8,    ///< for messages of the stages before and after
};
inline constexpr size_t kStages = 9;

/// The operations of the training group, by their number on the wire less one
/// (docs/formats/data-plane.md).
inline constexpr std::array<std::string_view, 10> kCollectiveNames = {
    "all_reduce",     "reduce_scatter", "all_gather", "broadcast", "barrier",
    "point_to_point", "reduce",         "scatter",    "gather",    "all_to_all"};
inline constexpr size_t kCollectives = kCollectiveNames.size();

/// What the engine's planned memory is for.
enum class MemoryPurpose : uint32_t {
  kParameters = 0,     ///< fp32 masters and the copies computed with
  kOptimizer = 1,      ///< moments
  kGradients = 2,      ///< exact accumulators
  kActivations = 3,    ///< the arena of the step
  kKernelScratch = 4,  ///< scratch of the kernels
};
inline constexpr size_t kMemoryPurposes = 5;

/// "data_wait" ...; "?" for what is none.
std::string_view name_of(Stage stage);
/// "parameters" ...; "?" for what is none.
std::string_view name_of(MemoryPurpose purpose);

/// Upper ends of the buckets of all durations, seconds: 1-2-5 from 100 us to 500 s. One bucket more
/// takes what is longer.
inline constexpr std::array<double, 21> kDurationBounds_s = {
    1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.2,
    0.5,  1,    2,    5,    10,   20,   50,   100,  200,  500};
inline constexpr size_t kDurationBuckets = kDurationBounds_s.size() + 1;

/// The bucket that a duration falls into.
size_t duration_bucket(int64_t nanoseconds);

/// Durations by bucket and their sum.
struct DurationCounters {
  std::array<std::atomic<int64_t>, kDurationBuckets> buckets;
  std::atomic<int64_t> nanoseconds;
};

/// One kind of collective.
struct CollectiveCounters {
  std::atomic<int64_t> operations;
  std::atomic<int64_t> nanoseconds;
  std::atomic<int64_t> bytes_sent;
  std::atomic<int64_t> bytes_received;
};

inline constexpr uint64_t kRankCountersVersion = 2;

/// The counters of a rank. A reading may catch one counter a step ahead of another.
struct RankCounters {
  /// kRankCountersVersion, stored last (release); another number: nothing may be read.
  std::atomic<uint64_t> version;
  std::atomic<int64_t> tokens_trained;  ///< by this rank alone
  std::atomic<int64_t> steps_skipped;   ///< overflow: the parameters stayed
  DurationCounters step;                ///< optimizer steps, evaluation and checkpoints left out
  std::array<DurationCounters, kStages> stages;  ///< one observation a loop turn that met the stage
  std::array<CollectiveCounters, kCollectives> collectives;
  std::array<std::atomic<int64_t>, kMemoryPurposes> memory_bytes;
};
static_assert(std::atomic<int64_t>::is_always_lock_free);

/// Counts one duration. For the one writer.
void observe(DurationCounters& counters, int64_t nanoseconds);

/// One reading, as plain numbers.
struct DurationReading {
  std::array<int64_t, kDurationBuckets> buckets{};
  int64_t nanoseconds = 0;

  int64_t count() const;
  double seconds() const { return static_cast<double>(nanoseconds) / 1e9; }
};

struct CollectiveReading {
  int64_t operations = 0;
  int64_t nanoseconds = 0;
  int64_t bytes_sent = 0;
  int64_t bytes_received = 0;
};

struct RankCountersReading {
  int64_t tokens_trained = 0;
  int64_t steps_skipped = 0;
  DurationReading step;
  std::array<DurationReading, kStages> stages{};
  std::array<CollectiveReading, kCollectives> collectives{};
  std::array<int64_t, kMemoryPurposes> memory_bytes{};
  int64_t resident_bytes = 0;  ///< of the process, as the agent sees it; not in the page
};

/// Brings what a page or a message says, which may be anything, between 0 and limits that no honest
/// rank meets and that a thousand ranks can be summed up under.
void bound(RankCountersReading& reading);

/// Bounded. All zeros when the page has no counters of this version.
RankCountersReading read_counters(const RankCounters& counters);

}  // namespace trainyard::contract

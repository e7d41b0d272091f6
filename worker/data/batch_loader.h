#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "common/base/clock.h"
#include "common/base/error.h"
#include "worker/data/batch_partition.h"
#include "worker/data/dataset.h"
#include "worker/data/micro_batch.h"

namespace trainyard::data {

inline constexpr int64_t kPrefetchBatches = 3;

/// What a BatchLoader reads and in which order.
struct BatchLoaderOptions {
  uint64_t seed = 0;
  int64_t tokens_per_sample = 0;        ///< T
  BatchPartition batch;                 ///< of each step
  int64_t data_rank = 0;                ///< d
  int64_t first_step = 0;               ///< for example after a restore
  std::optional<int32_t> end_of_text;   ///< cuts windows into documents; nullopt: they are whole
  int64_t prefetch = kPrefetchBatches;  ///< micro-batches read ahead of the step, 1..64
  /// How long micro_batch() waits for the reading thread before it gives up (a hung disk or network
  /// mount).
  Duration timeout = std::chrono::seconds(60);
};

/// Bytes of the tokens that the BatchLoader of a rank holds.
int64_t batch_loader_bytes(const BatchPartition& batch, int64_t data_rank,
                           int64_t tokens_per_sample, bool cuts_documents);

/// Yields the micro-batches of steps first_step, first_step + 1, ... for one data-parallel rank,
/// read ahead by one thread into a ring of buffers that has room for a step and for what is read
/// ahead of it. Endless: the caller stops. One consumer thread. Neither side allocates once it is
/// open. A resize or restart builds a new loader (microseconds).
class BatchLoader final : public MicroBatchSource {
 public:
  /// Errors: kInvalidConfig when D > B, or a number is out of its
  /// range, or the data set holds no sample of T + 1 tokens.
  static Result<BatchLoader> open(const TokenSet& tokens, const BatchLoaderOptions& options);
  BatchLoader(BatchLoader&&) noexcept;
  BatchLoader& operator=(BatchLoader&&) noexcept;
  /// Stops the reading thread and joins it, or leaves it alone where its read has not ended within
  /// a second: it then keeps what it uses.
  ~BatchLoader() override;

  /// Blocks until it is read. `index` is below micro_batches(data_rank). Errors: what reading met
  /// (kInvalidData), from its place on; kDeadline naming the tokens and files that are waited for.
  Result<MicroBatch> micro_batch(int index) override;
  void end_step() override;

 private:
  struct Ring;
  struct Impl;
  explicit BatchLoader(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace trainyard::data

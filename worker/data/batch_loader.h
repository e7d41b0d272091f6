#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "common/base/clock.h"
#include "common/base/error.h"
#include "worker/data/dataset.h"

namespace trainyard::data {

/// What one rank feeds to one micro-step. Row-major; row r is sequence r.
struct MicroBatch {
  std::span<const int32_t> tokens_BT;   ///< size x tokens_per_sample
  std::span<const int32_t> targets_BT;  ///< the same windows, one token later
  /// Run-wide ordinal of each row (step x B + i): the key of dropout and of any per-sample order.
  /// In evaluation the number of the window instead.
  std::span<const int64_t> ordinals;
  int64_t size = 0;               ///< rows; at least 1
  int64_t tokens_per_sample = 0;  ///< T
  int64_t step = 0;
  int64_t micro_index = 0;  ///< 0-based within this rank's share of the step
};

/// What a BatchLoader reads and in which order.
struct BatchLoaderOptions {
  uint64_t seed = 0;
  int64_t tokens_per_sample = 0;  ///< T
  int64_t global_sequences = 0;   ///< B
  int64_t micro_sequences = 1;    ///< rows of a full micro-batch; the last of a step may be short
  int64_t data_ranks = 1;         ///< D
  int64_t data_rank = 0;          ///< d, takes samples [floor(d B / D), floor((d + 1) B / D))
  int64_t first_step = 0;         ///< the step of the first batch, for example after a restore
  int64_t prefetch = 3;           ///< micro-batches read ahead, 1..64
  /// How long next() waits for the reading thread before it gives up (a hung disk or network
  /// mount).
  Duration timeout = std::chrono::seconds(60);
};

/// Rows of this rank's share: floor((d + 1) B / D) - floor(d B / D).
int64_t share_of(const BatchLoaderOptions& options);
/// Micro-batches a step takes on this rank: ceil(share / micro_sequences).
int64_t micro_batches_of(const BatchLoaderOptions& options);

/// Yields the micro-batches of steps first_step, first_step + 1, ... for one data-parallel rank,
/// read ahead by one thread into a ring of buffers. Endless: the caller stops. One consumer thread.
/// After warm-up neither side allocates. A resize or restart builds a new loader (microseconds).
class BatchLoader {
 public:
  /// Errors: kInvalidConfig when D > B, or a number is out of its
  /// range, or the data set holds no sample of T + 1 tokens.
  static Result<BatchLoader> open(const TokenSet& tokens, const BatchLoaderOptions& options);
  BatchLoader(BatchLoader&&) noexcept;
  BatchLoader& operator=(BatchLoader&&) noexcept;
  /// Stops the reading thread and joins it, or leaves it alone where its read has not ended within
  /// a second: it then keeps what it uses.
  ~BatchLoader();

  /// The next micro-batch; blocks until it is read. Its spans stay valid until the next-but-one
  /// call of next(): the batch before may still be in use while this one is taken. Errors: what
  /// reading met (kInvalidData), at its place in the sequence and at every later call; kDeadline
  /// naming the tokens and files that are waited for.
  Result<MicroBatch> next();

  /// Samples of an epoch.
  int64_t samples() const;
  /// Total time next() has blocked since the loader was opened.
  Duration waited() const;

 private:
  struct Ring;
  struct Impl;
  explicit BatchLoader(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace trainyard::data

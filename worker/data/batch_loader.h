#pragma once

#include <cstdint>
#include <memory>
#include <optional>
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
  int64_t size = 0;  ///< rows; 0 only for a rank whose share of the evaluation is empty
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
  /// `tokens` must outlive the loader. Errors: kInvalidConfig when D > B, or a number is out of its
  /// range, or the data set holds no sample of T + 1 tokens.
  static Result<BatchLoader> open(const TokenSet& tokens, const BatchLoaderOptions& options);
  BatchLoader(BatchLoader&&) noexcept;
  BatchLoader& operator=(BatchLoader&&) noexcept;
  /// Stops and joins the reading thread.
  ~BatchLoader();

  /// The next micro-batch; blocks until it is read. Its spans stay valid until the next-but-one
  /// call of next(): the batch before may still be in use while this one is taken. Errors: what
  /// reading met (kInvalidData), at its place in the sequence and at every later call; kDeadline.
  Result<MicroBatch> next();

  /// Samples of an epoch.
  int64_t samples() const;
  /// Total time next() has blocked since the loader was opened.
  Duration waited() const;

 private:
  struct Impl;
  explicit BatchLoader(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// What an EvaluationLoader reads.
struct EvaluationOptions {
  int64_t tokens_per_sample = 0;  ///< T
  int64_t micro_sequences = 1;
  int64_t windows_max = 0;  ///< the first so many windows; 0: all
  int64_t data_ranks = 1;   ///< the windows are shared out as a global batch is
  int64_t data_rank = 0;
};

/// The first windows of a held-out set in file order, the same at every call and layout; the last
/// fewer than T tokens are left out. Reads in the calling thread. Not thread-safe.
class EvaluationLoader {
 public:
  /// `tokens` must outlive the loader. Errors: kInvalidConfig as BatchLoader::open; more ranks than
  /// windows are allowed (a rank may have none).
  static Result<EvaluationLoader> open(const TokenSet& tokens, const EvaluationOptions& options);

  /// The next micro-batch of this rank's share, nullopt after the last. Spans are valid until the
  /// next call. Errors: kInvalidData.
  Result<std::optional<MicroBatch>> next();

  /// Starts again at the first window.
  void rewind() { position_ = 0; }

  /// Windows of all ranks together: the divisor of the mean is windows() x T.
  int64_t windows() const { return windows_; }

 private:
  EvaluationLoader(const TokenSet& tokens, const EvaluationOptions& options, int64_t windows);

  const TokenSet* tokens_;
  EvaluationOptions options_;
  int64_t windows_ = 0;
  int64_t first_ = 0;     // of this rank's share
  int64_t share_ = 0;     // windows of it
  int64_t position_ = 0;  // read so far
  std::vector<int32_t> window_;
  std::vector<int32_t> tokens_BT_;
  std::vector<int32_t> targets_BT_;
  std::vector<int64_t> ordinals_;
};

}  // namespace trainyard::data

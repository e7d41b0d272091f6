#pragma once

#include <cstdint>
#include <optional>

#include "common/base/error.h"
#include "worker/data/batch_loader.h"
#include "worker/data/dataset.h"
#include "worker/data/micro_batch_buffer.h"

namespace trainyard::data {

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
  int64_t windows_;
  int64_t first_;         // window of this rank's share
  int64_t share_;         // windows of it
  int64_t position_ = 0;  // windows of the share read so far
  MicroBatchBuffer buffer_;
};

}  // namespace trainyard::data

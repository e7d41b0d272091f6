#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/base/error.h"
#include "worker/data/batch_partition.h"
#include "worker/data/dataset.h"
#include "worker/data/micro_batch.h"
#include "worker/data/micro_batch_buffer.h"

namespace trainyard::data {

/// What an EvaluationLoader reads.
struct EvaluationOptions {
  int64_t tokens_per_sample = 0;  ///< T
  int64_t micro_sequences = 1;
  int64_t windows_max = 0;  ///< the first so many windows; 0: all
  int64_t data_ranks = 1;   ///< the windows are shared out as a global batch is
  int64_t data_rank = 0;
  std::optional<int32_t> end_of_text = std::nullopt;  ///< as BatchLoaderOptions
};

/// The first windows of a held-out set in file order, the same at every call and layout; the last
/// fewer than T tokens are left out. Reads in the calling thread, into a buffer for each
/// micro-batch of a step. Not thread-safe.
class EvaluationLoader final : public MicroBatchSource {
 public:
  /// `tokens` must outlive the loader. Errors: kInvalidConfig as BatchLoader::open; more ranks than
  /// windows are allowed (a rank may have none).
  static Result<EvaluationLoader> open(const TokenSet& tokens, const EvaluationOptions& options);

  /// Index 0 of the first step is the first micro-batch of this rank's share, beyond whose last
  /// nothing is asked. Errors: kInvalidData.
  Result<MicroBatch> micro_batch(int index) override;
  void end_step() override;

  /// Starts again at the first window.
  void rewind();

  /// Windows of all ranks together.
  int64_t windows() const { return windows_.samples; }

 private:
  EvaluationLoader(const TokenSet& tokens, const EvaluationOptions& options, int64_t windows);

  const TokenSet* tokens_;
  EvaluationOptions options_;
  BatchPartition windows_;
  int64_t first_ = 0;                      // micro-batch of the share that index 0 stands for
  int64_t asked_ = 0;                      // of this step
  std::vector<MicroBatchBuffer> buffers_;  // by index
};

}  // namespace trainyard::data

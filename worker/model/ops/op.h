#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/dtype.h"
#include "kernels/kernel_set.h"
#include "worker/data/micro_batch.h"

namespace trainyard::engine {

/// What the step fixes for every op.
struct StepNumerics {
  DType compute = DType::kFloat32;  ///< of GEMM inputs: kFloat32 or kBFloat16
  uint64_t seed = 0;
  bool training = true;  ///< false: no dropout, no gradients wanted
  int64_t grain_tokens = 128;
  int gradient_quantum_log2 = 40;
  /// Of all micro-batches and ranks: what the partials of a gradient's whole sum are counted by.
  int64_t grains_of_step = 1;
  int64_t targets_of_step = 1;
  kernels::OverflowFlag* overflow = nullptr;
  kernels::OverflowFlag* loss_overflow = nullptr;  ///< the same of losses: their sum is not known
};

/// One parameter as an op sees it.
struct ParamView {
  const void* data = nullptr;     ///< null in backward_weight, which reads no weights
  DType dtype = DType::kFloat32;  ///< of `data`: StepNumerics::compute, of vectors fp32
  int64_t* gradient = nullptr;    ///< exact accumulator; null outside backward_weight
  /// Nothing was added in this step yet and what is there means nothing: only where
  /// overwrites_gradient(); other accumulators are cleared before.
  bool gradient_is_new = false;
};

/// Everything an op may touch. Buffers come from the planned arena; nothing is allocated.
struct OpArgs {
  kernels::KernelSet* kernels = nullptr;
  const data::MicroBatch* batch = nullptr;
  const StepNumerics* numerics = nullptr;
  std::span<void* const> in;
  std::span<void* const> out;
  std::span<void* const> d_in;         ///< gradients of inputs; written by backward_input
  std::span<const void* const> d_out;  ///< gradients of outputs
  std::span<const ParamView> params;
  std::span<void* const> saved;  ///< the op's own buffers, forward to backward, see saved_bytes
  std::byte* scratch = nullptr;  ///< see scratch_bytes; null where that says 0
  int64_t* loss_sum = nullptr;   ///< see kernels::CrossEntropy; only a loss op adds to it
  int64_t* coarse_loss_sum = nullptr;  ///< the same
  float* last_logits =
      nullptr;  ///< while sampling: of each sequence's last row, [padded vocabulary]

  /// Of sums over the micro-batch's rows.
  kernels::Grains grains() const { return {batch->rows.sequences, numerics->grain_tokens}; }
};

/// Which buffers the two backward passes read besides gradients; decides how long values live.
struct BackwardUses {
  bool input_in_backward_input = false;
  bool input_in_backward_weight = false;
  bool output_in_backward_input = false;
};

/// Sizes that buffers and costs depend on.
struct OpExtent {
  int64_t rows = 0;
  int64_t tokens_per_sample = 0;
  DType compute = DType::kFloat32;
  bool trains = true;       ///< with backward passes
  bool has_targets = true;  ///< false while sampling
};

/// What an op is called for.
enum class OpPass : uint8_t { kForward, kBackwardInput, kBackwardWeight };

/// GEMM and attention floating point operations (multiply and add count two).
struct OpFlops {
  int64_t forward = 0;
  int64_t backward_input = 0;
  int64_t backward_weight = 0;
  int64_t recompute = 0;  ///< of a layer's nodes that run forward again; an op leaves it 0
};

/// One differentiable operation on one device. Knows no strategy: sharding reaches it only through
/// its own sizes, piece boundaries and the global coordinates of sequences.
class Op {
 public:
  virtual ~Op() = default;
  virtual BackwardUses backward_uses() const { return {}; }
  /// How many buffers the op keeps from forward to backward beside inputs and outputs.
  virtual size_t saved_count() const { return 0; }
  /// Bytes of each of them; 0 where the op does not write it.
  virtual std::vector<int64_t> saved_bytes(const OpExtent&) const { return {}; }
  /// Bytes needed during one call.
  virtual int64_t scratch_bytes(const OpExtent&, OpPass) const { return 0; }
  virtual OpFlops flops(const OpExtent&) const { return {}; }

  /// Whether forward takes little time for what it writes: `recompute: Selective` runs it again.
  virtual bool is_cheap() const { return false; }
  virtual void forward(const OpArgs&) const = 0;
  /// Writes d_in (`+=` where the op's header says so).
  virtual void backward_input(const OpArgs&) const {}
  /// Whether backward_weight can overwrite the accumulator of its `param`-th parameter instead of
  /// adding to it, as ParamView::gradient_is_new then says.
  virtual bool overwrites_gradient(size_t /*param*/) const { return false; }
  /// Adds to the exact gradient accumulators of the parameters.
  virtual void backward_weight(const OpArgs&) const {}
};

}  // namespace trainyard::engine

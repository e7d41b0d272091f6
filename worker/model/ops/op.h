#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/api/job_size.h"
#include "common/base/check.h"
#include "common/base/dtype.h"
#include "common/layout/mesh.h"
#include "kernels/kernel_set.h"
#include "worker/data/micro_batch.h"

namespace trainyard::engine {

/// What the step fixes for every op.
struct StepNumerics {
  uint64_t seed = 0;
  bool training = true;  ///< false: no dropout, no gradients wanted
  int64_t grain_tokens = 128;
  int64_t key_block = 128;
  int gradient_quantum_log2 = 40;
  /// Of gradients, and of what tensor ranks add up within an op: DeviceFormats::sums.
  DType sums = DType::kInt64;
  /// Of all micro-batches and ranks: what the partials of a gradient's whole sum are counted by.
  int64_t grains_of_step = 1;
  int64_t targets_of_step = 1;
  kernels::OverflowFlag* overflow = nullptr;
  kernels::OverflowFlag* loss_overflow = nullptr;  ///< the same of losses: their sum is not known
  int64_t* loss_sum = nullptr;         ///< see kernels::CrossEntropy; only a loss op adds to it
  int64_t* coarse_loss_sum = nullptr;  ///< the same
  /// While sampling: of each sequence's last row, [padded vocabulary].
  float* last_logits = nullptr;
};

/// A value or its gradient, [rows, columns], dense and row-major. Type and sizes are those of the
/// value in every pass; data is null in a pass that does not touch it.
struct TensorView : kernels::Elements {
  int64_t rows = 0;
  int64_t columns = 0;

  int64_t bytes() const { return rows * columns * size_of(type); }
};

/// The sums of a parameter's gradient; not set outside backward_weight.
struct GradientView {
  kernels::GradientSum sums = {};
  /// Nothing was added yet and what is there means nothing: only where overwrites_gradient(); other
  /// sums are cleared before.
  bool fresh = false;
  /// Where the op adds the squares of the sums that it leaves, which are those of the whole step:
  /// only where squares_gradient(); without limbs it adds none.
  kernels::SquaresOfSums squares = {};
};

/// One parameter as an op sees it, in the type that its ParamSpec says.
struct ParamView {
  kernels::ConstElements value;  ///< null in backward_weight, which reads no weights
  GradientView gradient;

  /// CHECKs that it is fp32.
  const float* fp32() const {
    TRAINYARD_CHECK(value.type == DType::kFloat32);
    return static_cast<const float*>(value.data);
  }
};

/// Everything an op may touch. Where tensor ranks have slices of sequences, what an op gathers is
/// of all rows in `in` and `d_out`. Buffers come from the planned arena; nothing is allocated.
struct OpArgs {
  kernels::KernelSet* kernels = nullptr;
  const data::MicroBatch* batch = nullptr;
  const data::MicroBatch* slices = nullptr;  ///< this rank's of it; null: it has all of it
  const data::MicroBatch* whole = nullptr;   ///< that of all context ranks
  const StepNumerics* numerics = nullptr;
  TensorView own;  ///< of what is gathered, this rank's slices
  std::span<const TensorView> in;
  std::span<const TensorView> out;
  std::span<const TensorView> d_in;   ///< gradients of inputs; written by backward_input
  std::span<const TensorView> d_out;  ///< gradients of outputs
  std::span<const ParamView> params;
  std::span<void* const> saved;  ///< the op's own buffers, forward to backward, see saved_bytes
  std::byte* scratch = nullptr;  ///< see scratch_bytes; null where that says 0

  /// The sums that a pass leaves in scratch for other ranks to add to, from element `first` on.
  kernels::GradientSum sums_in_scratch(int64_t first) const {
    return {scratch + first * size_of(numerics->sums), numerics->sums};
  }
  /// Of sums over the micro-batch's rows.
  kernels::Grains grains() const { return grains_of(*batch); }
  kernels::Grains grains_of(const data::MicroBatch& rows) const {
    return {rows.samples.empty() ? rows.rows.sequences : rows.samples, numerics->grain_tokens};
  }
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
  kernels::DeviceFormats formats;
  bool trains = true;       ///< with backward passes
  bool has_targets = true;  ///< false while sampling
};

/// What an op is called for.
enum class OpPass : uint8_t { kForward, kBackwardInput, kBackwardWeight };

/// One of the ranks that share every layer out, or every sequence; `size` divides the heads, and
/// with that all that is cut by heads.
struct TensorShare {
  int size = 1;
  int rank = 0;
  /// What each of them would have all of, they have slices of: rank r of each sequence of n
  /// positions [r n/size, (r+1) n/size). No grain lies in two of them.
  bool slices = false;
  /// Of context ranks: positions are dealt as RingBlocks says.
  bool ring = false;
  /// What this rank has of `length` elements of which each rank has whole ones.
  layout::Range of(int64_t length) const { return layout::even_share(length, size, rank); }
};

/// How the ranks of a ring share the positions of a sequence: in two blocks for each of them, of
/// which rank r has block r and block 2 ranks - 1 - r. So all ranks see equally many keys.
struct RingBlocks {
  int ranks = 1;
  int64_t count() const { return 2 * int64_t{ranks}; }
  int owner(int64_t block) const {
    return static_cast<int>(block < ranks ? block : count() - 1 - block);
  }
  /// Whether a rank has positions that see keys of the block.
  bool sees(int rank, int64_t block) const { return block <= count() - 1 - rank; }
  /// The first and the second block of a rank.
  std::array<int64_t, 2> of(int rank) const { return {rank, count() - 1 - rank}; }
};

/// What tensor or context ranks exchange within a call, between a pass and finish().
struct TensorMeeting {
  enum class Kind : uint8_t {
    kNone,
    /// The op leaves sums of its part in scratch, [rows, columns of what it writes] of
    /// StepNumerics::sums. finish() is given those of all ranks of some rows, and the ranks hand on
    /// what it writes; where they have slices, of these rows, which each rank keeps.
    kSums,
    /// Bits of the output of which all ranks but one hold zeros, in whole multiples of 32 of a row.
    /// Where ranks have slices, the op leaves those of all rows in scratch.
    kBits,
    /// Scratch holds fp32 [ranks, rows, `columns`], of which the op has written this rank's.
    kParts,
    /// Scratch holds [ranks, rows, `columns`] of the output's type, of which the op has written
    /// this rank's.
    kKeys,
    /// Scratch holds `columns` exact sums of each row, over this rank's part of what adds to them.
    kKeySums,
    /// Scratch holds `columns` sums of a parameter that every rank has, over this rank's part of
    /// what adds to its gradient.
    kGradients,
    /// Of context ranks: scratch holds, sequence by sequence, for each rank in ascending order its
    /// heads of this rank's positions. What the pass writes gets this rank's heads of all
    /// positions.
    kToHeads,
    /// The way back: what the pass reads has this rank's heads of all positions. Scratch gets,
    /// sequence by sequence, from each rank in ascending order its heads of this rank's positions.
    kToPositions,
    /// Of context ranks in a ring: the pass goes by RingBlocks in ascending order. The owner of a
    /// block hands `columns` of its rows to the ranks that see it, which hand back, in the backward
    /// pass, as many exact sums for each row. See RingStep and RingBuffers.
    kBlocks,
  };
  Kind kind = Kind::kNone;
  int64_t columns = 0;
};

/// What a rank of a ring does for a block of a pass.
struct RingStep {
  enum class Kind : uint8_t {
    kPack,   ///< of its own block: writes what is handed to the others
    kTake,   ///< computes with it; in the backward pass leaves sums for its rows
    kRound,  ///< of its own block, in the backward pass: makes gradients of the sums of all ranks
  };
  Kind kind = Kind::kPack;
  int64_t block = 0;
  std::byte* data = nullptr;  ///< what is handed around, [rows of a block, columns]
  int64_t* sums = nullptr;    ///< the same shape; null in the forward pass
};

/// Bytes of a part of scratch, so that the next part is aligned.
constexpr int64_t scratch_part(int64_t bytes) {
  constexpr int64_t kAlignment = 64;
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

/// What a pass of kBlocks has in scratch: what is handed around of the block at hand and of the
/// next one, in the backward pass sums of this rank and of another one; then what the op keeps
/// between blocks.
struct RingBuffers {
  std::array<int64_t, 2> data;
  int64_t sums = 0;
  int64_t received = 0;
  int64_t kept = 0;

  /// `rows` of a block of all sequences, of elements of `element` bytes.
  RingBuffers(int64_t rows, int64_t columns, int64_t element, OpPass pass) {
    const int64_t of_data = scratch_part(rows * columns * element);
    const int64_t of_sums =
        pass == OpPass::kBackwardInput ? scratch_part(rows * columns * size_of(DType::kInt64)) : 0;
    data = {0, of_data};
    sums = 2 * of_data;
    received = sums + of_sums;
    kept = received + of_sums;
  }
};

/// What a pass reads of all rows though its values have slices.
enum class SliceGather : uint8_t { kNone, kInput, kOutputGradient };

/// Rows of an exchange, and which row of the output the first of them is.
struct MeetingRows {
  layout::Range rows;
  int64_t output = 0;
};

/// The heads of packed projections [rows, (heads + 2 kv_heads) head_dim]: queries, keys, values.
struct HeadsShape {
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t packed_width() const { return (heads + 2 * kv_heads) * head_dim; }
  /// Ranks that share a key head: 1 where each has whole ones of its own. 0: `ranks` cannot share
  /// the heads.
  int64_t sharers(int64_t ranks) const {
    return api::key_sharers(heads, kv_heads, head_dim, ranks);
  }
  /// Of ranks that share a key head each has all of it.
  HeadsShape part(const TensorShare& share) const {
    const int64_t keys = sharers(share.size) > 1 ? 1 : share.of(kv_heads).size();
    return {share.of(heads).size(), keys, head_dim};
  }
};

/// Columns that consist of whole heads, one number for each segment of them.
struct HeadColumns {
  std::vector<int64_t> input;
  std::vector<int64_t> output;
};

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
  /// Whether backward_weight can add the squares of the accumulator of its `param`-th parameter
  /// while it writes it.
  virtual bool squares_gradient(size_t /*param*/) const { return false; }
  /// Adds to the exact gradient accumulators of the parameters.
  virtual void backward_weight(const OpArgs&) const {}

  /// The op that does the share's part of the work, over the share's part of parameters and values;
  /// null: every rank does all of it.
  virtual std::unique_ptr<Op> part(const TensorShare&) const { return nullptr; }
  /// Of an op that reads other positions of a sequence than it writes: what its first input and
  /// output consist of. Context ranks share it out by heads, as part() says; nothing: an op whose
  /// rows are apart.
  virtual std::optional<HeadColumns> head_columns() const { return std::nullopt; }
  /// The same op over the positions of a context rank of a ring, for as many heads; null: it reads
  /// no other positions, or cannot.
  virtual std::unique_ptr<Op> over_ring(const TensorShare&) const { return nullptr; }
  /// Of an op whose first input is packed projections: their heads, which tensor ranks share.
  virtual std::optional<HeadsShape> packed_heads() const { return std::nullopt; }
  /// Of what part() or over_ring() has made.
  virtual TensorMeeting meeting(OpPass) const { return {}; }
  /// Of what part() has made of a share with slices: of its first input or output.
  virtual SliceGather gathers(OpPass) const { return SliceGather::kNone; }
  /// Ends a pass that has a meeting: of kSums for `rows`, else for all rows.
  virtual void finish(const OpArgs&, OpPass, const MeetingRows& /*rows*/) const {}
  /// Of a pass of kBlocks: its part for one block.
  virtual void step(const OpArgs&, OpPass, const RingStep&) const {}
};

}  // namespace trainyard::engine

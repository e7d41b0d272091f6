#include "worker/model/ops/ring_attention.h"

#include <algorithm>

#include "common/base/check.h"

namespace trainyard::engine {
namespace {

/// Of the own block of a sample: its sequence among this rank's, and its rows in what is handed
/// around.
struct OwnBlock {
  kernels::Sequence rows;
  int64_t packed = 0;
};

/// Calls `visit` with each sample's part of a block that this rank has.
template <class Visit>
void for_each_own(const OpArgs& args, const RingBlocks& ring, int64_t block, const Visit& visit) {
  const size_t piece = block < ring.ranks ? 0 : 1;
  const auto samples = args.whole->rows.sequences;
  for (size_t sample = 0; sample < samples.size(); ++sample) {
    const kernels::Sequence& own = args.batch->rows.sequences[2 * sample + piece];
    TRAINYARD_CHECK(own.position == samples[sample].position + block * own.length);
    visit(OwnBlock{own, samples[sample].begin / ring.count()});
  }
}

}  // namespace

std::vector<int64_t> RingAttention::saved_bytes(const OpExtent& extent) const {
  return {extent.rows * shape_.heads * size_of(DType::kFloat32)};
}

int64_t RingAttention::scratch_bytes(const OpExtent& extent, OpPass pass) const {
  if (pass == OpPass::kBackwardWeight) return 0;
  const int64_t features = kernels::KeyBlock::features(shape_.head_dim);
  const int64_t statistics = pass == OpPass::kForward ? 2 : 0;
  return buffers(extent.rows, size_of(extent.formats.compute), pass).kept +
         extent.rows * shape_.heads * (features + statistics) * size_of(DType::kFloat32);
}

/// The extent is that of this rank's positions.
OpFlops RingAttention::flops(const OpExtent& extent) const {
  const int64_t pairs =
      kernels::attention_pairs(extent.tokens_per_sample * ring_.ranks, shape_.window);
  const int64_t samples = extent.rows / extent.tokens_per_sample;
  const int64_t each = samples * pairs / ring_.ranks * shape_.heads * shape_.head_dim;
  return {.forward = 2 * each, .backward_input = 4 * each};
}

TensorMeeting RingAttention::meeting(OpPass pass) const {
  if (pass == OpPass::kBackwardWeight) return {};
  return {.kind = TensorMeeting::Kind::kBlocks, .columns = key_columns()};
}

void RingAttention::step(const OpArgs& args, OpPass pass, const RingStep& step) const {
  switch (step.kind) {
    case RingStep::Kind::kPack:
      return pack(args, step);
    case RingStep::Kind::kTake:
      return pass == OpPass::kForward ? take_forward(args, step) : take_backward(args, step);
    case RingStep::Kind::kRound:
      return round(args, step);
  }
}

void RingAttention::pack(const OpArgs& args, const RingStep& step) const {
  const TensorView& qkv = args.in[0];
  const int64_t element = size_of(qkv.type);
  const int64_t bytes = key_columns() * element;
  for_each_own(args, ring_, step.block, [&](const OwnBlock& own) {
    for (int64_t row = 0; row < own.rows.length; ++row) {
      const auto* const from = static_cast<const std::byte*>(qkv.data) +
                               ((own.rows.begin + row) * qkv.columns + query_columns()) * element;
      std::copy_n(from, bytes, step.data + (own.packed + row) * bytes);
    }
  });
}

kernels::KeyBlock RingAttention::key_block(const OpArgs& args, OpPass pass,
                                           const RingStep& step) const {
  const TensorView& qkv = args.in[0];
  const int64_t per_row = qkv.rows * shape_.heads;
  const int64_t features = kernels::KeyBlock::features(shape_.head_dim);
  auto* const carry =
      reinterpret_cast<float*>(args.scratch + buffers(qkv.rows, size_of(qkv.type), pass).kept);
  float* const row_max = pass == OpPass::kForward ? carry + per_row * features : nullptr;
  return {.samples = args.whole->rows.sequences,
          .index = step.block,
          .count = ring_.count(),
          .kv = {step.data, qkv.type},
          .carry = carry,
          .row_max = row_max,
          .row_sum = row_max == nullptr ? nullptr : row_max + per_row,
          .d_kv = step.sums};
}

void RingAttention::take_forward(const OpArgs& args, const RingStep& step) const {
  const kernels::KeyBlock keys = key_block(args, OpPass::kForward, step);
  args.kernels->attention_forward(forward_of(shape_, args, &keys));
}

void RingAttention::take_backward(const OpArgs& args, const RingStep& step) const {
  const kernels::KeyBlock keys = key_block(args, OpPass::kBackwardInput, step);
  const int64_t rows = args.batch->rows.count / 2;
  args.kernels->clear(step.sums, rows * key_columns() * size_of(DType::kInt64));
  args.kernels->attention_backward(backward_of(shape_, args, &keys));
}

void RingAttention::round(const OpArgs& args, const RingStep& step) const {
  const TensorView& d_qkv = args.d_in[0];
  for_each_own(args, ring_, step.block, [&](const OwnBlock& own) {
    auto* const to = static_cast<std::byte*>(d_qkv.data) +
                     (own.rows.begin * d_qkv.columns + query_columns()) * size_of(d_qkv.type);
    args.kernels->round_exact({.rows = own.rows.length,
                               .width = key_columns(),
                               .sums = step.sums + own.packed * key_columns(),
                               .y = {to, d_qkv.type},
                               .stride = d_qkv.columns});
  });
}

}  // namespace trainyard::engine

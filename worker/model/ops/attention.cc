#include "worker/model/ops/attention.h"

namespace trainyard::engine {
namespace {

kernels::DropoutKey mask_key(const AttentionShape& shape, const StepNumerics& numerics) {
  return {.rate = numerics.training ? shape.dropout : 0.0F,
          .seed = numerics.seed,
          .op = shape.dropout_op};
}

}  // namespace

std::vector<int64_t> Attention::saved_bytes(const OpExtent& extent) const {
  return {extent.rows * shape_.heads * size_of(DType::kFloat32)};
}

OpFlops Attention::flops(const OpExtent& extent) const {
  const int64_t each = extent.rows * extent.tokens_per_sample * shape_.heads * shape_.head_dim;
  return {.forward = 2 * each, .backward_input = 4 * each};
}

void Attention::forward(const OpArgs& args) const {
  args.kernels->attention_forward({.rows = args.batch->rows,
                                   .heads = shape_.heads,
                                   .head_dim = shape_.head_dim,
                                   .key_block = args.numerics->grain_tokens,
                                   .dropout = mask_key(shape_, *args.numerics),
                                   .type = args.numerics->compute,
                                   .qkv = args.in[0],
                                   .out = args.out[0],
                                   .lse = static_cast<float*>(args.saved[0]),
                                   .overflow = args.numerics->overflow});
}

void Attention::backward_input(const OpArgs& args) const {
  args.kernels->attention_backward({.rows = args.batch->rows,
                                    .heads = shape_.heads,
                                    .head_dim = shape_.head_dim,
                                    .key_block = args.numerics->grain_tokens,
                                    .dropout = mask_key(shape_, *args.numerics),
                                    .type = args.numerics->compute,
                                    .qkv = args.in[0],
                                    .out = args.out[0],
                                    .lse = static_cast<const float*>(args.saved[0]),
                                    .d_out = static_cast<const float*>(args.d_out[0]),
                                    .d_qkv = args.d_in[0],
                                    .overflow = args.numerics->overflow});
}

}  // namespace trainyard::engine

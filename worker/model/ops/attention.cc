#include "worker/model/ops/attention.h"

#include "worker/model/ops/ring_attention.h"
#include "worker/model/ops/shared_key_attention.h"

namespace trainyard::engine {
namespace {

/// Where the mask of its dropout comes from.
kernels::DropoutKey mask_key(const AttentionShape& shape, const StepNumerics& numerics) {
  return {.rate = numerics.training ? shape.dropout : 0.0F,
          .seed = numerics.seed,
          .op = shape.dropout_op};
}

}  // namespace

kernels::AttentionForward forward_of(const AttentionShape& shape, const OpArgs& args,
                                     const kernels::KeyBlock* keys) {
  return {.rows = args.batch->rows,
          .keys = keys,
          .heads = shape.heads,
          .kv_heads = shape.kv_heads,
          .head_dim = shape.head_dim,
          .head_offset = shape.head_offset,
          .key_block = args.numerics->key_block,
          .window = shape.window,
          .dropout = mask_key(shape, *args.numerics),
          .qkv = args.in[0],
          .out = args.out[0],
          .lse = static_cast<float*>(args.saved[0]),
          .overflow = args.numerics->overflow};
}

kernels::AttentionBackward backward_of(const AttentionShape& shape, const OpArgs& args,
                                       const kernels::KeyBlock* keys) {
  return {.rows = args.batch->rows,
          .keys = keys,
          .heads = shape.heads,
          .kv_heads = shape.kv_heads,
          .head_dim = shape.head_dim,
          .head_offset = shape.head_offset,
          .key_block = args.numerics->key_block,
          .window = shape.window,
          .dropout = mask_key(shape, *args.numerics),
          .qkv = args.in[0],
          .out = args.out[0],
          .lse = static_cast<const float*>(args.saved[0]),
          .d_out = args.d_out[0],
          .d_qkv = args.d_in[0],
          .overflow = args.numerics->overflow};
}

std::vector<int64_t> Attention::saved_bytes(const OpExtent& extent) const {
  return {extent.rows * shape_.heads * size_of(DType::kFloat32)};
}

OpFlops Attention::flops(const OpExtent& extent) const {
  const int64_t pairs = kernels::attention_pairs(extent.tokens_per_sample, shape_.window);
  const int64_t samples = extent.rows / extent.tokens_per_sample;
  const int64_t each = samples * pairs * shape_.heads * shape_.head_dim;
  return {.forward = 2 * each, .backward_input = 4 * each};
}

std::unique_ptr<Op> Attention::part(const TensorShare& share) const {
  const HeadsShape all = heads();
  const int64_t sharers = all.sharers(share.size);
  if (sharers == 0) return nullptr;
  AttentionShape part = shape_;
  part.heads = all.part(share).heads;
  part.kv_heads = all.part(share).kv_heads;
  part.head_offset = shape_.head_offset + share.of(shape_.heads).begin;
  if (sharers == 1) return std::make_unique<Attention>(part);
  return std::make_unique<SharedKeyAttention>(part, share.rank / sharers, shape_.kv_heads, sharers);
}

std::optional<HeadColumns> Attention::head_columns() const {
  const int64_t queries = shape_.heads * shape_.head_dim;
  const int64_t keys = shape_.kv_heads * shape_.head_dim;
  return HeadColumns{.input = {queries, keys, keys}, .output = {queries}};
}

std::unique_ptr<Op> Attention::over_ring(const TensorShare& context) const {
  return std::make_unique<RingAttention>(shape_, context.size);
}

void Attention::forward(const OpArgs& args) const {
  args.kernels->attention_forward(forward_of(shape_, args));
}

void Attention::backward_input(const OpArgs& args) const {
  args.kernels->attention_backward(backward_of(shape_, args));
}

}  // namespace trainyard::engine

#include "worker/model/ops/shared_key_attention.h"

#include <algorithm>

namespace trainyard::engine {

SharedKeyAttention::Places SharedKeyAttention::places(int64_t rows, DType compute) const {
  const int64_t features = kernels::KeyBlock::features(shape_.head_dim);
  Places places;
  places.keys = scratch_part(key_heads_ * rows * key_columns() * size_of(DType::kInt64));
  places.carry = places.keys + scratch_part(rows * key_columns() * size_of(compute));
  places.end = places.carry + rows * shape_.heads * features * size_of(DType::kFloat32);
  return places;
}

int64_t SharedKeyAttention::scratch_bytes(const OpExtent& extent, OpPass pass) const {
  return pass == OpPass::kBackwardInput ? places(extent.rows, extent.formats.compute).end : 0;
}

TensorMeeting SharedKeyAttention::meeting(OpPass pass) const {
  if (pass != OpPass::kBackwardInput) return {};
  return {.kind = TensorMeeting::Kind::kKeySums, .columns = key_heads_ * key_columns()};
}

int64_t* SharedKeyAttention::own_sums(const OpArgs& args) const {
  return reinterpret_cast<int64_t*>(args.scratch) + key_head_ * args.in[0].rows * key_columns();
}

void SharedKeyAttention::backward_input(const OpArgs& args) const {
  const TensorView& qkv = args.in[0];
  const Places places = this->places(qkv.rows, qkv.type);
  const int64_t element = size_of(qkv.type);
  const int64_t bytes = key_columns() * element;
  std::byte* const keys = args.scratch + places.keys;
  for (int64_t row = 0; row < qkv.rows; ++row) {
    const auto* const from =
        static_cast<const std::byte*>(qkv.data) + (row * qkv.columns + query_columns()) * element;
    std::copy_n(from, bytes, keys + row * bytes);
  }
  args.kernels->clear(args.scratch,
                      meeting(OpPass::kBackwardInput).columns * qkv.rows * size_of(DType::kInt64));
  const kernels::KeyBlock block{.samples = args.batch->rows.sequences,
                                .kv = {keys, qkv.type},
                                .carry = reinterpret_cast<float*>(args.scratch + places.carry),
                                .d_kv = own_sums(args),
                                .sharers = sharers_};
  args.kernels->attention_backward(backward_of(shape_, args, &block));
}

void SharedKeyAttention::finish(const OpArgs& args, OpPass, const MeetingRows&) const {
  const TensorView& d_qkv = args.d_in[0];
  auto* const to = static_cast<std::byte*>(d_qkv.data) + query_columns() * size_of(d_qkv.type);
  args.kernels->round_exact({.rows = d_qkv.rows,
                             .width = key_columns(),
                             .sums = own_sums(args),
                             .y = {to, d_qkv.type},
                             .stride = d_qkv.columns});
}

}  // namespace trainyard::engine

#include "worker/model/ops/heads.h"

namespace trainyard::engine {

void HeadNorm::forward(const OpArgs& args) const {
  args.kernels->head_norm_forward({.rows = args.in[0].rows,
                                   .heads = shape_.heads,
                                   .kv_heads = shape_.kv_heads,
                                   .head_dim = shape_.head_dim,
                                   .epsilon = epsilon_,
                                   .x = args.in[0],
                                   .query_gamma = args.params[0].fp32(),
                                   .key_gamma = args.params[1].fp32(),
                                   .y = args.out[0],
                                   .rstd = static_cast<float*>(args.saved[0])});
}

void HeadNorm::backward_input(const OpArgs& args) const {
  args.kernels->head_norm_backward_input({.rows = args.in[0].rows,
                                          .heads = shape_.heads,
                                          .kv_heads = shape_.kv_heads,
                                          .head_dim = shape_.head_dim,
                                          .dy = args.d_out[0],
                                          .x = args.in[0],
                                          .query_gamma = args.params[0].fp32(),
                                          .key_gamma = args.params[1].fp32(),
                                          .rstd = static_cast<const float*>(args.saved[0]),
                                          .dx = args.d_in[0]});
}

void HeadNorm::backward_weight(const OpArgs& args) const {
  const int64_t heads = all_heads_ > 0 ? all_heads_ : shape_.heads;
  const int64_t bytes = shape_.head_dim * size_of(args.numerics->sums);
  const kernels::GradientSum query =
      meets_ ? args.sums_in_scratch(0) : args.params[0].gradient.sums;
  const kernels::GradientSum key = meets_ || !counts_keys_ ? args.sums_in_scratch(shape_.head_dim)
                                                           : args.params[1].gradient.sums;
  if (meets_) args.kernels->clear(query.data(), bytes);
  if (meets_ || !counts_keys_) args.kernels->clear(key.data(), bytes);
  args.kernels->head_norm_backward_weight({.rows = args.in[0].rows,
                                           .heads = shape_.heads,
                                           .kv_heads = shape_.kv_heads,
                                           .head_dim = shape_.head_dim,
                                           .dy = args.d_out[0],
                                           .x = args.in[0],
                                           .rstd = static_cast<const float*>(args.saved[0]),
                                           .grains = args.grains(),
                                           .quantum_log2 = args.numerics->gradient_quantum_log2,
                                           .partials = args.numerics->grains_of_step * heads,
                                           .d_query_gamma = query,
                                           .d_key_gamma = key,
                                           .overflow = args.numerics->overflow});
  if (meets_ && !counts_keys_) args.kernels->clear(key.data(), bytes);
}

std::unique_ptr<Op> HeadNorm::part(const TensorShare& share) const {
  auto part = std::make_unique<HeadNorm>(shape_.part(share), epsilon_);
  part->all_heads_ = shape_.heads;
  const int64_t sharers = shape_.sharers(share.size);
  part->counts_keys_ = sharers <= 1 || share.rank % sharers == 0;
  // With slices the gradient of what every rank has is added up over the ranks as it is.
  part->meets_ = !share.slices;
  return part;
}

TensorMeeting HeadNorm::meeting(OpPass pass) const {
  if (!meets_ || pass != OpPass::kBackwardWeight) return {};
  return {.kind = TensorMeeting::Kind::kGradients, .columns = 2 * shape_.head_dim};
}

void HeadNorm::finish(const OpArgs& args, OpPass, const MeetingRows&) const {
  int64_t first = 0;
  for (const ParamView& param : args.params) {
    args.kernels->accumulate(args.sums_in_scratch(first), param.gradient.sums, shape_.head_dim,
                             false);
    first += shape_.head_dim;
  }
}

void Rope::turn(const OpArgs& args, const TensorView& x, const TensorView& y, bool backward) const {
  args.kernels->rope({.rows = args.batch->rows,
                      .heads = shape_.heads,
                      .kv_heads = shape_.kv_heads,
                      .head_dim = shape_.head_dim,
                      .frequencies = table_.frequencies,
                      .scale = table_.scale,
                      .backward = backward,
                      .x = x,
                      .y = y});
}

}  // namespace trainyard::engine

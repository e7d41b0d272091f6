#include "worker/model/ops/embedding.h"

namespace trainyard::engine {

void Embedding::forward(const OpArgs& args) const {
  const data::MicroBatch& batch = *args.batch;
  auto* y = static_cast<float*>(args.out[0]);
  args.kernels->embedding_forward({.rows = batch.rows,
                                   .width = width_,
                                   .tokens = batch.tokens.data(),
                                   .type = args.params[0].dtype,
                                   .wte = args.params[0].data,
                                   .wpe = args.params[1].data,
                                   .y = y});
  if (!args.numerics->training || rate_ == 0) return;
  args.kernels->dropout_add({.rows = batch.rows,
                             .width = width_,
                             .dropout = {.rate = rate_, .seed = args.numerics->seed, .op = op_},
                             .x = y,
                             .residual = nullptr,
                             .y = y});
}

void Embedding::backward_weight(const OpArgs& args) const {
  const data::MicroBatch& batch = *args.batch;
  const auto* dy = static_cast<const float*>(args.d_out[0]);
  if (rate_ > 0) {
    auto* masked = reinterpret_cast<float*>(args.scratch);
    args.kernels->dropout_backward(
        {.rows = batch.rows,
         .width = width_,
         .dropout = {.rate = rate_, .seed = args.numerics->seed, .op = op_},
         .dy = dy,
         .dx = masked,
         .dx_type = DType::kFloat32});
    dy = masked;
  }
  args.kernels->embedding_backward({.rows = batch.rows,
                                    .width = width_,
                                    .tokens = batch.tokens.data(),
                                    .dy = dy,
                                    .quantum_log2 = args.numerics->gradient_quantum_log2,
                                    .partials = args.numerics->targets_of_step,
                                    .d_wte = args.params[0].gradient,
                                    .d_wpe = args.params[1].gradient,
                                    .overflow = args.numerics->overflow});
}

}  // namespace trainyard::engine

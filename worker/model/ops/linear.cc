#include "worker/model/ops/linear.h"

namespace trainyard::engine {

using kernels::GemmOutput;
using kernels::GemmParams;

std::vector<int64_t> fixed_piece_ends(int64_t length, int64_t pieces, int64_t segments) {
  std::vector<int64_t> ends;
  const int64_t segment = length / segments;
  for (int64_t s = 0; s < segments; ++s) {
    for (int64_t c = 1; c <= pieces; ++c) {
      const int64_t end = s * segment + c * segment / pieces;
      if (ends.empty() || end > ends.back()) ends.push_back(end);
    }
  }
  return ends;
}

OpFlops Linear::flops(const OpExtent& extent) const {
  const int64_t each = 2 * extent.rows * shape_.inputs * shape_.outputs;
  return {.forward = each, .backward_input = each, .backward_weight = each};
}

void Linear::forward(const OpArgs& args) const {
  GemmParams gemm{.m = args.batch->rows.count, .n = shape_.outputs, .k = shape_.inputs};
  gemm.a = args.in[0];
  gemm.lda = shape_.inputs;
  gemm.b = args.params[0].data;
  gemm.ldb = shape_.inputs;
  gemm.transpose_b = true;
  gemm.input = args.numerics->compute;
  gemm.bias = static_cast<const float*>(args.params[1].data);
  gemm.c = args.out[0];
  gemm.ldc = shape_.outputs;
  gemm.c_type = shape_.output_fp32 ? DType::kFloat32 : args.numerics->compute;
  gemm.overflow = args.numerics->overflow;
  if (shape_.cut == LinearCut::kRow) {
    gemm.output = GemmOutput::kExactRound;
    gemm.chain_ends = shape_.piece_ends;
  }
  args.kernels->gemm(gemm);
}

void Linear::backward_input(const OpArgs& args) const {
  GemmParams gemm{.m = args.batch->rows.count, .n = shape_.inputs, .k = shape_.outputs};
  gemm.a = args.d_out[0];
  gemm.lda = shape_.outputs;
  gemm.b = args.params[0].data;
  gemm.ldb = shape_.inputs;
  gemm.input = args.numerics->compute;
  gemm.c = args.d_in[0];
  gemm.ldc = shape_.inputs;
  gemm.overflow = args.numerics->overflow;
  if (shape_.cut == LinearCut::kColumn) {
    gemm.output = GemmOutput::kExactRound;
    gemm.chain_ends = shape_.piece_ends;
  }
  args.kernels->gemm(gemm);
}

void Linear::backward_weight(const OpArgs& args) const {
  GemmParams gemm{.m = shape_.outputs, .n = shape_.inputs, .k = args.batch->rows.count};
  gemm.a = args.d_out[0];
  gemm.lda = shape_.outputs;
  gemm.transpose_a = true;
  gemm.b = args.in[0];
  gemm.ldb = shape_.inputs;
  gemm.input = args.numerics->compute;
  gemm.grains = args.grains();
  gemm.output = GemmOutput::kExactAccumulate;
  gemm.overwrite = args.params[0].gradient_is_new;
  gemm.quantum_log2 = args.numerics->gradient_quantum_log2;
  gemm.partials = args.numerics->grains_of_step;
  gemm.c = args.params[0].gradient;
  gemm.ldc = shape_.inputs;
  gemm.c_type = DType::kInt64;
  gemm.overflow = args.numerics->overflow;
  args.kernels->gemm(gemm);

  args.kernels->bias_backward({.rows = args.batch->rows.count,
                               .width = shape_.outputs,
                               .dy = args.d_out[0],
                               .stride = shape_.outputs,
                               .dy_type = args.numerics->compute,
                               .grains = args.grains(),
                               .quantum_log2 = args.numerics->gradient_quantum_log2,
                               .partials = args.numerics->grains_of_step,
                               .d_bias = args.params[1].gradient,
                               .overflow = args.numerics->overflow});
}

}  // namespace trainyard::engine

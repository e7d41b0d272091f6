#include "worker/model/ops/linear.h"

#include <utility>

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

std::vector<layout::Range> parts_of(std::span<const int64_t> segments, const TensorShare& share) {
  std::vector<layout::Range> parts;
  int64_t begin = 0;
  for (const int64_t segment : segments) {
    const layout::Range part = share.of(segment);
    parts.push_back({begin + part.begin, begin + part.end});
    begin += segment;
  }
  return parts;
}

int64_t length_of(std::span<const layout::Range> parts) {
  int64_t length = 0;
  for (const layout::Range& part : parts)
    length += part.size();
  return length;
}

std::vector<int64_t> piece_ends_in(std::span<const layout::Range> parts,
                                   std::span<const int64_t> ends) {
  std::vector<int64_t> found;
  int64_t before = 0;
  for (const layout::Range& part : parts) {
    for (const int64_t end : ends) {
      if (end > part.begin && end <= part.end) found.push_back(before + end - part.begin);
    }
    before += part.size();
  }
  return found;
}

OpFlops Linear::flops(const OpExtent& extent) const {
  const int64_t each = 2 * extent.rows * shape_.inputs * shape_.outputs;
  return {.forward = each, .backward_input = each, .backward_weight = each};
}

void Linear::forward(const OpArgs& args) const {
  GemmParams gemm{.m = args.in[0].rows, .n = shape_.outputs, .k = shape_.inputs};
  gemm.a = args.in[0].data;
  gemm.lda = shape_.inputs;
  gemm.b = args.params[0].value.data;
  gemm.ldb = shape_.inputs;
  gemm.transpose_b = true;
  gemm.input = args.in[0].type;
  if (args.params.size() > 1) gemm.bias = args.params[1].fp32();
  gemm.c = args.out[0].data;
  gemm.ldc = shape_.outputs;
  gemm.c_type = args.out[0].type;
  gemm.overflow = args.numerics->overflow;
  if (shape_.cut == LinearCut::kRow && !shape_.piece_ends.empty()) {
    gemm.output = GemmOutput::kExactRound;
    gemm.chain_ends = shape_.piece_ends;
  }
  if (meeting(OpPass::kForward).kind != TensorMeeting::Kind::kNone) leave_sums(args, gemm);
  args.kernels->gemm(gemm);
}

void Linear::backward_input(const OpArgs& args) const {
  GemmParams gemm{.m = args.d_out[0].rows, .n = shape_.inputs, .k = shape_.outputs};
  gemm.a = args.d_out[0].data;
  gemm.lda = shape_.outputs;
  gemm.b = args.params[0].value.data;
  gemm.ldb = shape_.inputs;
  gemm.input = args.d_out[0].type;
  gemm.c = args.d_in[0].data;
  gemm.ldc = shape_.inputs;
  gemm.c_type = args.d_in[0].type;
  gemm.overflow = args.numerics->overflow;
  if (shape_.cut == LinearCut::kColumn && !shape_.piece_ends.empty()) {
    gemm.output = GemmOutput::kExactRound;
    gemm.chain_ends = shape_.piece_ends;
  }
  if (meeting(OpPass::kBackwardInput).kind != TensorMeeting::Kind::kNone) leave_sums(args, gemm);
  args.kernels->gemm(gemm);
}

/// Of a part: the sums of its pieces, in scratch, in place of what all of them round to.
void Linear::leave_sums(const OpArgs& args, GemmParams& gemm) const {
  gemm.add_to(args.sums_in_scratch(0));
  gemm.overwrite = true;
  gemm.partials = shape_.all_pieces;
  gemm.bias = nullptr;
}

TensorMeeting Linear::meeting(OpPass pass) const {
  const OpPass summed = shape_.cut == LinearCut::kRow ? OpPass::kForward : OpPass::kBackwardInput;
  if (shape_.all_pieces == 0 || pass != summed) return {};
  return {.kind = TensorMeeting::Kind::kSums};
}

SliceGather Linear::gathers(OpPass pass) const {
  if (!shape_.slices) return SliceGather::kNone;
  if (shape_.cut == LinearCut::kRow)
    return pass == OpPass::kForward ? SliceGather::kNone : SliceGather::kOutputGradient;
  return pass == OpPass::kBackwardInput ? SliceGather::kNone : SliceGather::kInput;
}

int64_t Linear::scratch_bytes(const OpExtent& extent, OpPass pass) const {
  if (meeting(pass).kind == TensorMeeting::Kind::kNone) return 0;
  const int64_t width = pass == OpPass::kForward ? shape_.outputs : shape_.inputs;
  return extent.rows * width * size_of(extent.formats.sums);
}

std::unique_ptr<Op> Linear::part(const TensorShare& share) const {
  LinearShape part = shape_;
  const std::vector<layout::Range> parts = parts_of(shape_.segments, share);
  (shape_.cut == LinearCut::kRow ? part.inputs : part.outputs) = length_of(parts);
  part.piece_ends = piece_ends_in(parts, shape_.piece_ends);
  part.all_pieces = std::ssize(shape_.piece_ends);
  part.slices = share.slices;
  return std::make_unique<Linear>(std::move(part));
}

void Linear::finish(const OpArgs& args, OpPass pass, const MeetingRows& rows) const {
  const bool forward = pass == OpPass::kForward;
  const TensorView& y = forward ? args.out[0] : args.d_in[0];
  const int64_t to = rows.output * y.columns * size_of(y.type);
  args.kernels->round_exact(
      {.rows = rows.rows.size(),
       .width = y.columns,
       .sums = args.sums_in_scratch(rows.rows.begin * y.columns),
       .bias = forward && args.params.size() > 1 ? args.params[1].fp32() : nullptr,
       .y = {static_cast<std::byte*>(y.data) + to, y.type}});
}

void Linear::backward_weight(const OpArgs& args) const {
  GemmParams gemm{.m = shape_.outputs, .n = shape_.inputs, .k = args.d_out[0].rows};
  gemm.a = args.d_out[0].data;
  gemm.lda = shape_.outputs;
  gemm.transpose_a = true;
  gemm.b = args.in[0].data;
  gemm.ldb = shape_.inputs;
  gemm.input = args.d_out[0].type;
  gemm.grains = args.grains();
  gemm.add_to(args.params[0].gradient.sums);
  gemm.overwrite = args.params[0].gradient.fresh;
  gemm.squares = args.params[0].gradient.squares;
  gemm.quantum_log2 = args.numerics->gradient_quantum_log2;
  gemm.partials = args.numerics->grains_of_step;
  gemm.ldc = shape_.inputs;
  gemm.overflow = args.numerics->overflow;
  args.kernels->gemm(gemm);

  if (args.params.size() == 1) return;
  // Every rank has a bias of a product by inputs: of slices it adds its own rows.
  const bool own = shape_.slices && shape_.cut == LinearCut::kRow;
  const TensorView& dy = own ? args.own : args.d_out[0];
  args.kernels->bias_backward({.rows = dy.rows,
                               .width = shape_.outputs,
                               .dy = dy,
                               .stride = shape_.outputs,
                               .grains = own ? args.grains_of(*args.slices) : args.grains(),
                               .quantum_log2 = args.numerics->gradient_quantum_log2,
                               .partials = args.numerics->grains_of_step,
                               .d_bias = args.params[1].gradient.sums,
                               .overflow = args.numerics->overflow});
}

}  // namespace trainyard::engine

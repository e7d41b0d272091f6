#include "worker/model/ops/classifier.h"

#include <algorithm>

namespace trainyard::engine {
namespace {

/// Rows of fp32 logits that exist at one time: enough for the GEMM, which packs the embedding for
/// each of these blocks (256 rows: 0.85 of the speed of 1,024, 512 rows: 0.95), 103 MB at GPT-2's
/// vocabulary.
constexpr int64_t kLogitRows = 512;

const std::byte* row_at(const void* base, int64_t row, int64_t width, DType type) {
  return static_cast<const std::byte*>(base) + row * width * size_of(type);
}

}  // namespace

std::vector<int64_t> Classifier::saved_bytes(const OpExtent& extent) const {
  return {extent.trains ? extent.rows * shape_.padded_vocab * size_of(extent.compute) : 0};
}

int64_t Classifier::scratch_bytes(const OpExtent& extent, OpPass pass) const {
  if (pass != OpPass::kForward || !extent.has_targets) return 0;
  return std::min(extent.rows, kLogitRows) * shape_.padded_vocab * size_of(DType::kFloat32);
}

OpFlops Classifier::flops(const OpExtent& extent) const {
  const int64_t each = 2 * extent.rows * shape_.width * shape_.padded_vocab;
  return {.forward = each, .backward_input = each, .backward_weight = each};
}

void Classifier::project(const OpArgs& args, int64_t first_row, int64_t rows, float* logits) const {
  const DType compute = args.numerics->compute;
  kernels::GemmParams gemm{.m = rows, .n = shape_.padded_vocab, .k = shape_.width};
  gemm.a = row_at(args.in[0], first_row, shape_.width, compute);
  gemm.lda = shape_.width;
  gemm.b = args.params[0].data;
  gemm.ldb = shape_.width;
  gemm.transpose_b = true;
  gemm.input = compute;
  gemm.c = logits;
  gemm.ldc = shape_.padded_vocab;
  gemm.overflow = args.numerics->overflow;
  args.kernels->gemm(gemm);
}

void Classifier::forward(const OpArgs& args) const {
  const data::MicroBatch& batch = *args.batch;
  if (args.last_logits != nullptr) {
    float* logits = args.last_logits;
    for (const kernels::Sequence& sequence : batch.rows.sequences) {
      project(args, sequence.begin + sequence.length - 1, 1, logits);
      logits += shape_.padded_vocab;
    }
  }
  if (batch.targets.empty()) return;
  auto* logits = reinterpret_cast<float*>(args.scratch);
  const DType compute = args.numerics->compute;
  for (int64_t row = 0; row < batch.rows.count; row += kLogitRows) {
    const int64_t rows = std::min(kLogitRows, batch.rows.count - row);
    project(args, row, rows, logits);
    void* d_logits = nullptr;
    if (args.numerics->training) {
      d_logits = const_cast<std::byte*>(row_at(args.saved[0], row, shape_.padded_vocab, compute));
    }
    args.kernels->cross_entropy({.rows = rows,
                                 .vocab = shape_.vocab,
                                 .padded_vocab = shape_.padded_vocab,
                                 .piece_ends = shape_.piece_ends,
                                 .logits = logits,
                                 .targets = batch.targets.data() + row,
                                 .loss_sum = args.loss_sum,
                                 .coarse_loss_sum = args.coarse_loss_sum,
                                 .d_logits = d_logits,
                                 .d_type = compute,
                                 .overflow = args.numerics->loss_overflow});
  }
}

void Classifier::backward_input(const OpArgs& args) const {
  kernels::GemmParams gemm{
      .m = args.batch->rows.count, .n = shape_.width, .k = shape_.padded_vocab};
  gemm.a = args.saved[0];
  gemm.lda = shape_.padded_vocab;
  gemm.b = args.params[0].data;
  gemm.ldb = shape_.width;
  gemm.input = args.numerics->compute;
  gemm.chain_ends = shape_.piece_ends;
  gemm.output = kernels::GemmOutput::kExactRound;
  gemm.c = args.d_in[0];
  gemm.ldc = shape_.width;
  gemm.overflow = args.numerics->overflow;
  args.kernels->gemm(gemm);
}

void Classifier::backward_weight(const OpArgs& args) const {
  kernels::GemmParams gemm{
      .m = shape_.padded_vocab, .n = shape_.width, .k = args.batch->rows.count};
  gemm.a = args.saved[0];
  gemm.lda = shape_.padded_vocab;
  gemm.transpose_a = true;
  gemm.b = args.in[0];
  gemm.ldb = shape_.width;
  gemm.input = args.numerics->compute;
  gemm.grains = args.grains();
  gemm.output = kernels::GemmOutput::kExactAccumulate;
  gemm.overwrite = args.params[0].gradient_is_new;
  gemm.quantum_log2 = args.numerics->gradient_quantum_log2;
  gemm.partials = args.numerics->grains_of_step;
  gemm.c = args.params[0].gradient;
  gemm.ldc = shape_.width;
  gemm.c_type = DType::kInt64;
  gemm.overflow = args.numerics->overflow;
  args.kernels->gemm(gemm);
}

}  // namespace trainyard::engine

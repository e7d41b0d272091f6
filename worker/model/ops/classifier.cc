#include "worker/model/ops/classifier.h"

#include <algorithm>
#include <span>

#include "worker/model/ops/linear.h"

namespace trainyard::engine {
namespace {

/// Rows of fp32 logits that exist at one time: enough for the GEMM, which packs the embedding for
/// each of these blocks (256 rows: 0.85 of the speed of 1,024, 512 rows: 0.95), 103 MB at GPT-2's
/// vocabulary.
constexpr int64_t kLogitRows = 512;

std::byte* row_at(void* base, int64_t row, int64_t width, DType type) {
  return static_cast<std::byte*>(base) + row * width * size_of(type);
}

}  // namespace

std::vector<int64_t> Classifier::saved_bytes(const OpExtent& extent) const {
  return {extent.trains ? extent.rows * shape_.padded_vocab * size_of(extent.formats.compute) : 0};
}

int64_t Classifier::scratch_bytes(const OpExtent& extent, OpPass pass) const {
  if (is_part() && pass == OpPass::kBackwardInput)
    return extent.rows * shape_.width * size_of(extent.formats.sums);
  if (pass != OpPass::kForward || !extent.has_targets) return 0;
  if (is_part()) {
    // Where they are fp32 their gradient takes their place.
    const bool in_place = extent.trains && extent.formats.compute == DType::kFloat32;
    return statistics_bytes(extent.rows) +
           (in_place ? 0 : extent.rows * shape_.padded_vocab * size_of(DType::kFloat32));
  }
  return std::min(extent.rows, kLogitRows) * shape_.padded_vocab * size_of(DType::kFloat32);
}

OpFlops Classifier::flops(const OpExtent& extent) const {
  const int64_t each = 2 * extent.rows * shape_.width * shape_.padded_vocab;
  return {.forward = each, .backward_input = each, .backward_weight = each};
}

void Classifier::project(const OpArgs& args, int64_t first_row, int64_t rows, float* logits) const {
  const TensorView& x = args.in[0];
  kernels::GemmParams gemm{.m = rows, .n = shape_.padded_vocab, .k = shape_.width};
  gemm.a = row_at(x.data, first_row, shape_.width, x.type);
  gemm.lda = shape_.width;
  gemm.b = args.params[0].value.data;
  gemm.ldb = shape_.width;
  gemm.transpose_b = true;
  gemm.input = x.type;
  gemm.c = logits;
  gemm.ldc = shape_.padded_vocab;
  gemm.overflow = args.numerics->overflow;
  args.kernels->gemm(gemm);
}

void Classifier::forward(const OpArgs& args) const {
  const data::MicroBatch& batch = *args.batch;
  if (args.numerics->last_logits != nullptr) {
    float* logits = args.numerics->last_logits;
    for (const kernels::Sequence& sequence : batch.rows.sequences) {
      project(args, sequence.begin + sequence.length - 1, 1, logits);
      logits += shape_.padded_vocab;
    }
  }
  if (batch.targets.empty()) return;
  if (is_part()) {
    float* const logits = logits_of_part(args);
    project(args, 0, batch.rows.count, logits);
    args.kernels->vocabulary_statistics(
        {.rows = batch.rows.count,
         .vocab = shape_.vocab,
         .padded_vocab = shape_.padded_vocab,
         .piece_ends = shape_.piece_ends,
         .logits = logits,
         .targets = batch.targets.data(),
         .part = shape_.part,
         .statistics = reinterpret_cast<float*>(args.scratch) +
                       share_.rank * batch.rows.count * shape_.part.columns()});
    return;
  }
  auto* logits = reinterpret_cast<float*>(args.scratch);
  const DType type = args.in[0].type;
  for (int64_t row = 0; row < batch.rows.count; row += kLogitRows) {
    const int64_t rows = std::min(kLogitRows, batch.rows.count - row);
    project(args, row, rows, logits);
    kernels::Elements d_logits;
    if (args.numerics->training) {
      d_logits = {row_at(args.saved[0], row, shape_.padded_vocab, type), type};
    }
    args.kernels->cross_entropy({.rows = rows,
                                 .vocab = shape_.vocab,
                                 .padded_vocab = shape_.padded_vocab,
                                 .piece_ends = shape_.piece_ends,
                                 .logits = logits,
                                 .targets = batch.targets.data() + row,
                                 .loss_sum = args.numerics->loss_sum,
                                 .coarse_loss_sum = args.numerics->coarse_loss_sum,
                                 .d_logits = d_logits,
                                 .overflow = args.numerics->loss_overflow});
  }
}

std::unique_ptr<Op> Classifier::part(const TensorShare& share) const {
  const layout::Range columns = share.of(shape_.padded_vocab);
  ClassifierShape part{
      .width = shape_.width,
      .vocab = std::clamp<int64_t>(shape_.vocab - columns.begin, 0, columns.size()),
      .padded_vocab = columns.size(),
      .piece_ends = piece_ends_in(std::span(&columns, 1), shape_.piece_ends),
      .part = {.first = columns.begin, .ranks = share.size},
      .all_pieces = std::ssize(shape_.piece_ends)};
  for (int rank = 0; rank < share.size; ++rank) {
    const layout::Range theirs = TensorShare{share.size, rank}.of(shape_.padded_vocab);
    part.part.pieces = std::max(
        part.part.pieces, std::ssize(piece_ends_in(std::span(&theirs, 1), shape_.piece_ends)));
  }
  auto op = std::make_unique<Classifier>(std::move(part));
  op->share_ = share;
  return op;
}

TensorMeeting Classifier::meeting(OpPass pass) const {
  if (!is_part() || pass == OpPass::kBackwardWeight) return {};
  if (pass == OpPass::kBackwardInput) return {.kind = TensorMeeting::Kind::kSums};
  return {.kind = TensorMeeting::Kind::kParts, .columns = shape_.part.columns()};
}

int64_t Classifier::statistics_bytes(int64_t rows) const {
  return scratch_part(shape_.part.ranks * rows * shape_.part.columns() * size_of(DType::kFloat32));
}

float* Classifier::logits_of_part(const OpArgs& args) const {
  if (args.numerics->training && args.in[0].type == DType::kFloat32)
    return static_cast<float*>(args.saved[0]);
  return reinterpret_cast<float*>(args.scratch + statistics_bytes(args.batch->rows.count));
}

void Classifier::finish(const OpArgs& args, OpPass pass, const MeetingRows& rows) const {
  if (pass == OpPass::kBackwardInput) {
    const TensorView& y = args.d_in[0];
    const int64_t to = rows.output * y.columns * size_of(y.type);
    args.kernels->round_exact({.rows = rows.rows.size(),
                               .width = y.columns,
                               .sums = args.sums_in_scratch(rows.rows.begin * y.columns),
                               .y = {static_cast<std::byte*>(y.data) + to, y.type}});
    return;
  }
  const data::MicroBatch& batch = *args.batch;
  kernels::CrossEntropy loss{.rows = batch.rows.count,
                             .vocab = shape_.vocab,
                             .padded_vocab = shape_.padded_vocab,
                             .logits = logits_of_part(args),
                             .targets = batch.targets.data(),
                             .loss_sum = args.numerics->loss_sum,
                             .coarse_loss_sum = args.numerics->coarse_loss_sum,
                             .overflow = args.numerics->loss_overflow,
                             .part = shape_.part};
  loss.part.statistics = reinterpret_cast<const float*>(args.scratch);
  if (args.numerics->training) loss.d_logits = {args.saved[0], args.in[0].type};
  args.kernels->cross_entropy(loss);
}

void Classifier::backward_input(const OpArgs& args) const {
  kernels::GemmParams gemm{
      .m = args.batch->rows.count, .n = shape_.width, .k = shape_.padded_vocab};
  gemm.a = args.saved[0];
  gemm.lda = shape_.padded_vocab;
  gemm.b = args.params[0].value.data;
  gemm.ldb = shape_.width;
  gemm.input = args.in[0].type;
  if (!shape_.piece_ends.empty()) {
    gemm.chain_ends = shape_.piece_ends;
    gemm.output = kernels::GemmOutput::kExactRound;
  }
  gemm.c = args.d_in[0].data;
  gemm.ldc = shape_.width;
  gemm.c_type = args.d_in[0].type;
  if (is_part()) {
    gemm.add_to(args.sums_in_scratch(0));
    gemm.overwrite = true;
    gemm.partials = shape_.all_pieces;
  }
  gemm.overflow = args.numerics->overflow;
  args.kernels->gemm(gemm);
}

void Classifier::backward_weight(const OpArgs& args) const {
  kernels::GemmParams gemm{.m = shape_.padded_vocab, .n = shape_.width, .k = args.in[0].rows};
  gemm.a = args.saved[0];
  gemm.lda = shape_.padded_vocab;
  gemm.transpose_a = true;
  gemm.b = args.in[0].data;
  gemm.ldb = shape_.width;
  gemm.input = args.in[0].type;
  gemm.grains = args.grains();
  gemm.add_to(args.params[0].gradient.sums);
  gemm.overwrite = args.params[0].gradient.fresh;
  gemm.squares = args.params[0].gradient.squares;
  gemm.quantum_log2 = args.numerics->gradient_quantum_log2;
  gemm.partials = args.numerics->grains_of_step;
  gemm.ldc = shape_.width;
  gemm.overflow = args.numerics->overflow;
  args.kernels->gemm(gemm);
}

}  // namespace trainyard::engine

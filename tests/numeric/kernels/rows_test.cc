// Sequences of any length in one micro-batch have the bits that they have alone.

#include <algorithm>
#include <numeric>

#include "tests/numeric/kernels/support.h"

namespace trainyard::kernels::test {
namespace {

constexpr int64_t kGrain = 16;  // and key block
constexpr int64_t kHeads = 2;
constexpr int64_t kWidth = 2 * 24;
constexpr int64_t kVocab = 11;
constexpr int64_t kPositions = 70;
constexpr int kQuantum = 40;
constexpr DropoutKey kDropout{.rate = 0.2F, .seed = 3, .op = 4};

class RowsTest : public VariantTest {};
INSTANTIATE_TEST_SUITE_P(Isa, RowsTest, one_thread_each(), name_of_variant);

/// Inputs of all rows, and what kernels make of them: of the whole batch by one call each, or of
/// each sequence by its own.
struct Batch {
  DType type;
  std::vector<Sequence> sequences = sequences_of({1, 17, 70, 16, 5, 33, 1}, 40);
  int64_t rows = rows_of(sequences).count;
  Tensor qkv = Tensor(type, normal(rows * 3 * kWidth, 1));
  std::vector<float> x = normal(rows * kWidth, 2);
  Tensor typed_x = Tensor(type, x);
  std::vector<float> ones = std::vector<float>(static_cast<size_t>(rows), 1.0F);
  std::vector<int32_t> tokens = std::vector<int32_t>(static_cast<size_t>(rows));
  std::vector<float> wte = normal(kVocab * kWidth, 3);
  std::vector<float> wpe = normal(kPositions * kWidth, 4);

  Tensor out = Tensor(type, rows* kWidth);
  std::vector<float> lse = std::vector<float>(static_cast<size_t>(rows * kHeads));
  Tensor d_qkv = Tensor(type, rows * 3 * kWidth);
  std::vector<float> embedded = std::vector<float>(x.size());
  std::vector<float> dropped = std::vector<float>(x.size());
  Tensor d_dropped = Tensor(type, rows* kWidth);
  std::vector<int64_t> sums = std::vector<int64_t>((kWidth + 4 + kVocab + kPositions) * kWidth);
  OverflowFlag overflow{0};

  explicit Batch(DType element_type) : type(element_type) {
    for (size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = static_cast<int32_t>(i * i % kVocab);
  }

  static void* row(Tensor& t, int64_t row, int64_t width) {
    return static_cast<char*>(t.data()) + row * width * size_of(t.type);
  }

  /// Rows from `first` on, of `of`, which are counted from there.
  void run(KernelSet& kernels, int64_t first, const std::vector<Sequence>& of) {
    const Rows all = rows_of(of);
    const Grains grains{of, kGrain};
    void* const qkv_rows = row(qkv, first, 3 * kWidth);
    void* const out_rows = row(out, first, kWidth);
    void* const x_rows = row(typed_x, first, kWidth);
    const float* const dy = x.data() + first * kWidth;
    kernels.attention_forward({.rows = all,
                               .heads = kHeads,
                               .kv_heads = kHeads,
                               .head_dim = kWidth / kHeads,
                               .key_block = kGrain,
                               .dropout = kDropout,
                               .qkv = {qkv_rows, type},
                               .out = {out_rows, type},
                               .lse = lse.data() + first * kHeads,
                               .overflow = &overflow});
    kernels.attention_backward({.rows = all,
                                .heads = kHeads,
                                .kv_heads = kHeads,
                                .head_dim = kWidth / kHeads,
                                .key_block = kGrain,
                                .dropout = kDropout,
                                .qkv = {qkv_rows, type},
                                .out = {out_rows, type},
                                .lse = lse.data() + first * kHeads,
                                .d_out = dy,
                                .d_qkv = {row(d_qkv, first, 3 * kWidth), type},
                                .overflow = &overflow});
    kernels.embedding_forward({.rows = all,
                               .width = kWidth,
                               .tokens = tokens.data() + first,
                               .wte = wte.data(),
                               .wpe = wpe.data(),
                               .y = embedded.data() + first * kWidth});
    kernels.dropout_add({.rows = all,
                         .width = kWidth,
                         .dropout = kDropout,
                         .x = dy,
                         .residual = embedded.data() + first * kWidth,
                         .y = dropped.data() + first * kWidth});
    kernels.dropout_backward({.rows = all,
                              .width = kWidth,
                              .dropout = kDropout,
                              .dy = dy,
                              .dx = {row(d_dropped, first, kWidth), type}});
    int64_t* to = sums.data();
    kernels.gemm({.m = kWidth,
                  .n = kWidth,
                  .k = all.count,
                  .a = x_rows,
                  .lda = kWidth,
                  .transpose_a = true,
                  .b = out_rows,
                  .ldb = kWidth,
                  .input = type,
                  .grains = grains,
                  .output = GemmOutput::kExactAccumulate,
                  .quantum_log2 = kQuantum,
                  .c = to,
                  .ldc = kWidth,
                  .overflow = &overflow});
    to += kWidth * kWidth;
    kernels.bias_backward({.rows = all.count,
                           .width = kWidth,
                           .dy = {x_rows, type},
                           .stride = kWidth,
                           .grains = grains,
                           .quantum_log2 = kQuantum,
                           .d_bias = to,
                           .overflow = &overflow});
    to += kWidth;
    kernels.layer_norm_backward_weight({.rows = all.count,
                                        .width = kWidth,
                                        .dy = dy,
                                        .x = embedded.data() + first * kWidth,
                                        .mean = ones.data() + first,
                                        .rstd = ones.data() + first,
                                        .grains = grains,
                                        .quantum_log2 = kQuantum,
                                        .dgamma = to,
                                        .dbeta = to + kWidth,
                                        .overflow = &overflow});
    to += 2 * kWidth;
    kernels.embedding_backward({.rows = all,
                                .width = kWidth,
                                .tokens = tokens.data() + first,
                                .dy = dy,
                                .quantum_log2 = kQuantum,
                                .d_wte = to,
                                .d_wpe = to + kVocab * kWidth,
                                .overflow = &overflow});
  }
};

TEST_P(RowsTest, ASequenceHasTheBitsThatItHasAlone) {
  for (const DType type : {DType::kFloat32, DType::kBFloat16}) {
    Batch together(type);
    together.run(kernels(), 0, together.sequences);
    Batch alone(type);
    for (const Sequence& sequence : alone.sequences) {
      Sequence first = sequence;
      first.begin = 0;
      alone.run(kernels(), sequence.begin, {first});
    }
    EXPECT_EQ(together.out.f32, alone.out.f32);
    EXPECT_EQ(together.out.bf16, alone.out.bf16);
    EXPECT_EQ(together.lse, alone.lse);
    EXPECT_EQ(together.d_qkv.f32, alone.d_qkv.f32);
    EXPECT_EQ(together.d_qkv.bf16, alone.d_qkv.bf16);
    EXPECT_EQ(together.embedded, alone.embedded);
    EXPECT_EQ(together.dropped, alone.dropped);
    EXPECT_EQ(together.d_dropped.f32, alone.d_dropped.f32);
    EXPECT_EQ(together.d_dropped.bf16, alone.d_dropped.bf16);
    EXPECT_EQ(together.sums, alone.sums);
    EXPECT_EQ(together.overflow, 0U);
    EXPECT_EQ(alone.overflow, 0U);
  }
}

TEST_P(RowsTest, APartOfASampleKeepsTheSamplesGrains) {
  // Cut at a position within a grain, its sums are those of the grains' two parts.
  constexpr int64_t kRows = 3 * kGrain;
  constexpr int64_t kCut = kGrain + 5;
  const std::vector<float> dy = normal(kRows * kWidth, 5);
  const auto sums_of = [&](const std::vector<Sequence>& sequences) {
    std::vector<int64_t> sums(kWidth, 0);
    OverflowFlag overflow{0};
    kernels().bias_backward({.rows = kRows,
                             .width = kWidth,
                             .dy = dy.data(),
                             .stride = kWidth,
                             .grains = {sequences, kGrain},
                             .quantum_log2 = kQuantum,
                             .d_bias = sums.data(),
                             .overflow = &overflow});
    return sums;
  };
  std::vector<Sequence> cut = sequences_of({kCut, kRows - kCut});
  cut[1].position = kCut;
  const auto grains = sequences_of({kGrain, 5, kGrain - 5, kGrain});
  EXPECT_EQ(sums_of(cut), sums_of(grains));
  EXPECT_NE(sums_of(cut), sums_of(sequences_of({kRows})));
}

}  // namespace
}  // namespace trainyard::kernels::test

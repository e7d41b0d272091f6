// ExactSum: the int64 result does not depend on how the rows are divided into calls or on the order
// of the calls, as long as the grains are the same.

#include <algorithm>
#include <cmath>
#include <numeric>

#include <gmock/gmock.h>

#include "tests/numeric/kernels/support.h"

namespace trainyard::kernels::test {
namespace {

constexpr int64_t kGrain = 16;
constexpr int64_t kGrains = 9;
constexpr int64_t kRows = kGrain * kGrains - 5;  // the last grain is short
constexpr int64_t kIn = 21;
constexpr int64_t kOut = 50;
constexpr int kQuantum = 45;

/// A piece of the rows that begins and ends at a grain's edge.
struct Piece {
  int64_t begin, end;
};

/// Pieces of random numbers of grains, in random order.
std::vector<Piece> random_pieces(uint32_t seed) {
  std::mt19937 engine(seed);
  std::vector<Piece> pieces;
  for (int64_t grain = 0; grain < kGrains;) {
    const int64_t count = std::min<int64_t>(kGrains - grain, 1 + engine() % 3);
    pieces.push_back({grain * kGrain, std::min(kRows, (grain + count) * kGrain)});
    grain += count;
  }
  std::shuffle(pieces.begin(), pieces.end(), engine);
  return pieces;
}

struct Inputs {
  Tensor x, dy;
  std::vector<float> mean = normal(kRows, 3, 0.1F);
  std::vector<float> rstd = std::vector<float>(kRows, 1.1F);
  explicit Inputs(DType type)
      : x(type, normal(kRows * kIn, 1)), dy(type, normal(kRows * kOut, 2)) {}
  const void* row(const Tensor& t, int64_t row, int64_t width) const {
    return static_cast<const char*>(t.data()) + row * width * size_of(t.type);
  }
};

std::vector<int64_t> weight_gradient(KernelSet& kernels, const Inputs& in,
                                     const std::vector<Piece>& pieces) {
  std::vector<int64_t> sums(kIn * kOut, 0);
  OverflowFlag overflow{0};
  for (const Piece& piece : pieces) {
    const std::vector<Sequence> sequences = sequences_of({piece.end - piece.begin}, 0, piece.begin);
    kernels.gemm({.m = kIn,
                  .n = kOut,
                  .k = piece.end - piece.begin,
                  .a = in.row(in.x, piece.begin, kIn),
                  .lda = kIn,
                  .transpose_a = true,
                  .b = in.row(in.dy, piece.begin, kOut),
                  .ldb = kOut,
                  .input = in.x.type,
                  .grains = {sequences, kGrain},
                  .output = GemmOutput::kExactAccumulate,
                  .quantum_log2 = kQuantum,
                  .c = sums.data(),
                  .ldc = kOut,
                  .overflow = &overflow});
  }
  EXPECT_EQ(overflow, 0U);
  return sums;
}

std::vector<int64_t> bias_gradient(KernelSet& kernels, const Inputs& in,
                                   const std::vector<Piece>& pieces) {
  std::vector<int64_t> sums(kOut, 0);
  OverflowFlag overflow{0};
  for (const Piece& piece : pieces) {
    const std::vector<Sequence> sequences = sequences_of({piece.end - piece.begin}, 0, piece.begin);
    kernels.bias_backward({.rows = piece.end - piece.begin,
                           .width = kOut,
                           .dy = {in.row(in.dy, piece.begin, kOut), in.dy.type},
                           .stride = kOut,
                           .grains = {sequences, kGrain},
                           .quantum_log2 = kQuantum,
                           .d_bias = sums.data(),
                           .overflow = &overflow});
  }
  return sums;
}

class ExactSumTest : public VariantTest {};
INSTANTIATE_TEST_SUITE_P(Isa, ExactSumTest, one_thread_each(), name_of_variant);

TEST_P(ExactSumTest, WeightAndBiasGradientsDoNotDependOnTheSplitOrTheOrder) {
  for (const DType type : {DType::kFloat32, DType::kBFloat16}) {
    const Inputs in(type);
    const std::vector<Piece> whole = {{0, kRows}};
    const std::vector<int64_t> weight = weight_gradient(kernels(), in, whole);
    const std::vector<int64_t> bias = bias_gradient(kernels(), in, whole);
    for (uint32_t seed = 0; seed < 8; ++seed) {
      EXPECT_EQ(weight_gradient(kernels(), in, random_pieces(seed)), weight) << seed;
      EXPECT_EQ(bias_gradient(kernels(), in, random_pieces(seed)), bias) << seed;
    }
  }
}

TEST_P(ExactSumTest, PartialsThatFitAreRoundedOnceWhateverTheirSize) {
  // Chains of one element times 1. What is beyond the mantissa of double may be converted in
  // another way, and what waits beside it too: each size stands alone and beside all others.
  const std::vector<float> sizes = {0x1p-46F,       0x1.8p-45F,      -0x1.4p-44F,    0x1.fffffep3F,
                                    0x1.fffffep5F,  0x1p6F,          -0x1.fffffep5F, -0x1p6F,
                                    -0x1.000002p6F, 0x1.8p7F,        0x1.000002p8F,  -0x1.8p10F,
                                    0x1.fffffep15F, -0x1.fffffep15F, 0x1.fffffep-22F};
  const auto chains = static_cast<int64_t>(sizes.size());
  const std::vector<float> ones(static_cast<size_t>(chains * kOut), 1.0F);
  std::vector<int64_t> ends(sizes.size());
  std::iota(ends.begin(), ends.end(), 1);
  std::vector<std::vector<float>> rows(sizes.size() + 1, std::vector<float>(sizes.size(), 0.0F));
  rows.back() = sizes;
  for (size_t i = 0; i < sizes.size(); ++i)
    rows[i][i] = sizes[i];
  for (const std::vector<float>& row : rows) {
    int64_t wanted = 0;
    for (const float x : row)
      wanted += std::llrint(std::ldexp(static_cast<double>(x), kQuantum));
    std::vector<int64_t> sums(kOut, -1);
    OverflowFlag overflow{0};
    kernels().gemm({.m = 1,
                    .n = kOut,
                    .k = chains,
                    .a = row.data(),
                    .lda = chains,
                    .b = ones.data(),
                    .ldb = kOut,
                    .chain_ends = ends,
                    .output = GemmOutput::kExactAccumulate,
                    .overwrite = true,
                    .quantum_log2 = kQuantum,
                    .c = sums.data(),
                    .ldc = kOut,
                    .overflow = &overflow});
    EXPECT_THAT(sums, ::testing::Each(wanted));
    EXPECT_EQ(overflow, 0U);
  }
}

/// What kGrains grains of which each element adds up to `partial` leave in the sums of all
/// operations, and whether something did not fit, with `per_call` grains a call. The last grain is
/// negative where `signs_differ`.
struct LimitCase {
  float partial;
  int64_t per_call;
  bool signs_differ = false;
};
std::pair<std::vector<int64_t>, bool> sums_at_the_limit(KernelSet& kernels, const LimitCase& c) {
  std::vector<int64_t> sums(5 * kOut, 0);
  OverflowFlag overflow{0};
  const std::vector<float> ones(kGrains, 1.0F);
  const std::vector<float> zeros(kGrains, 0.0F);
  const std::vector<int32_t> tokens(kGrains, 0);
  for (int64_t first = 0; first < kGrains; first += c.per_call) {
    const int64_t count = std::min(c.per_call, kGrains - first);
    std::vector<float> dy(static_cast<size_t>(count * kOut), c.partial);  // a row is a grain
    if (c.signs_differ && first + count == kGrains) {
      std::fill(dy.end() - kOut, dy.end(), -c.partial);
    }
    const std::vector<Sequence> sequences =
        sequences_of(std::vector<int64_t>(static_cast<size_t>(count), 1));
    const Grains grains{sequences, 1};
    kernels.gemm({.m = 1,
                  .n = kOut,
                  .k = count,
                  .a = ones.data(),
                  .lda = 1,
                  .transpose_a = true,
                  .b = dy.data(),
                  .ldb = kOut,
                  .grains = grains,
                  .output = GemmOutput::kExactAccumulate,
                  .partials = kGrains,
                  .quantum_log2 = kQuantum,
                  .c = sums.data(),
                  .ldc = kOut,
                  .overflow = &overflow});
    kernels.bias_backward({.rows = count,
                           .width = kOut,
                           .dy = dy.data(),
                           .stride = kOut,
                           .grains = grains,
                           .quantum_log2 = kQuantum,
                           .partials = kGrains,
                           .d_bias = sums.data() + kOut,
                           .overflow = &overflow});
    kernels.layer_norm_backward_weight({.rows = count,
                                        .width = kOut,
                                        .dy = dy.data(),
                                        .x = dy.data(),
                                        .mean = zeros.data(),
                                        .rstd = zeros.data(),
                                        .grains = grains,
                                        .quantum_log2 = kQuantum,
                                        .partials = kGrains,
                                        .dgamma = sums.data() + 2 * kOut,
                                        .dbeta = sums.data() + 2 * kOut,
                                        .overflow = &overflow});
    kernels.embedding_backward({.rows = rows_of(sequences),
                                .width = kOut,
                                .tokens = tokens.data(),
                                .dy = dy.data(),
                                .quantum_log2 = kQuantum,
                                .partials = kGrains,
                                .d_wte = sums.data() + 3 * kOut,
                                .d_wpe = sums.data() + 4 * kOut,
                                .overflow = &overflow});
  }
  return {sums, overflow != 0};
}

TEST_P(ExactSumTest, WhatFitsDoesNotDependOnTheCalls) {
  // Nine grains, up to a power of two 16: partials below 2^58 quanta.
  const float limit = std::ldexp(1.0F, fitting_log2(kGrains) - kQuantum);
  ASSERT_EQ(limit, 0x1p13F);
  const float below = std::nextafter(limit, 0.0F);
  for (const int64_t per_call : {1, 2, 4, 9}) {
    const auto each = std::llrint(std::ldexp(static_cast<double>(below), kQuantum));
    EXPECT_THAT(sums_at_the_limit(kernels(), {below, per_call}),
                ::testing::Pair(::testing::Each(kGrains * each), false));
    EXPECT_THAT(sums_at_the_limit(kernels(), {-below, per_call}),
                ::testing::Pair(::testing::Each(-kGrains * each), false));
    EXPECT_THAT(sums_at_the_limit(kernels(), {below, per_call, true}),
                ::testing::Pair(::testing::Each((kGrains - 2) * each), false));
    // Also where the signs take out what is too large: it depends on the order.
    EXPECT_THAT(sums_at_the_limit(kernels(), {limit, per_call, true}),
                ::testing::Pair(::testing::Each(0), true));
    EXPECT_THAT(sums_at_the_limit(kernels(), {0x1p16F, per_call}),
                ::testing::Pair(::testing::Each(0), true))
        << "all of them would wrap";
  }
}

TEST_P(ExactSumTest, ProductsThatRoundTheirSumCannotWrapItEither) {
  constexpr int64_t kChains = 4;
  const std::vector<float> ones(kChains, 1.0F);
  const std::vector<int64_t> ends = {1, 2, 3, 4};
  const float limit = std::ldexp(1.0F, fitting_log2(kChains) - kActivationQuantumLog2);
  for (const float partial : {std::nextafter(limit, 0.0F), limit}) {
    const std::vector<float> b(kChains, partial);
    float sum = 0;
    OverflowFlag overflow{0};
    kernels().gemm({.m = 1,
                    .n = 1,
                    .k = kChains,
                    .a = ones.data(),
                    .lda = kChains,
                    .b = b.data(),
                    .ldb = 1,
                    .chain_ends = ends,
                    .output = GemmOutput::kExactRound,
                    .c = &sum,
                    .ldc = 1,
                    .overflow = &overflow});
    EXPECT_EQ(overflow != 0, partial == limit);
    EXPECT_EQ(sum, partial == limit ? 0.0F : kChains * partial);
  }
}

TEST_P(ExactSumTest, RowParallelProductIsTheSumOfItsParts) {
  // Two ranks that hold pieces [0, 3) and [3, 6) of the summed dimension send int64 partial sums;
  // their sum, rounded once, is what one rank that holds all of it stores.
  constexpr int64_t kM = 13;
  constexpr int64_t kK = 60;
  const std::vector<float> a = normal(kM * kK, 1);
  const std::vector<float> b = normal(kK * kOut, 2);
  const std::vector<int64_t> ends = {10, 20, 30, 40, 50, 60};
  std::vector<float> whole(kM * kOut);
  OverflowFlag overflow{0};
  GemmParams p{.m = kM,
               .n = kOut,
               .k = kK,
               .a = a.data(),
               .lda = kK,
               .b = b.data(),
               .ldb = kOut,
               .chain_ends = ends,
               .output = GemmOutput::kExactRound,
               .c = whole.data(),
               .ldc = kOut,
               .overflow = &overflow};
  kernels().gemm(p);
  std::vector<int64_t> sums(kM * kOut, 0);
  p.output = GemmOutput::kExactAccumulate;
  p.c = sums.data();
  p.k = 30;
  p.chain_ends = std::span(ends).first(3);
  for (const int64_t half : {1, 0}) {
    p.a = a.data() + half * 30;
    p.b = b.data() + half * 30 * kOut;
    kernels().gemm(p);
  }
  for (size_t i = 0; i < sums.size(); ++i) {
    EXPECT_EQ(std::ldexp(static_cast<float>(sums[i]), -kActivationQuantumLog2), whole[i]);
  }
}

TEST_P(ExactSumTest, LayerNormWeightsDoNotDependOnTheSplit) {
  const Inputs in(DType::kFloat32);
  auto run = [&](const std::vector<Piece>& pieces) {
    std::vector<int64_t> sums(2 * kIn, 0);
    OverflowFlag overflow{0};
    const std::vector<float> dy = normal(kRows * kIn, 9);
    for (const Piece& piece : pieces) {
      const std::vector<Sequence> sequences =
          sequences_of({piece.end - piece.begin}, 0, piece.begin);
      kernels().layer_norm_backward_weight({.rows = piece.end - piece.begin,
                                            .width = kIn,
                                            .dy = dy.data() + piece.begin * kIn,
                                            .x = in.x.f32.data() + piece.begin * kIn,
                                            .mean = in.mean.data() + piece.begin,
                                            .rstd = in.rstd.data() + piece.begin,
                                            .grains = {sequences, kGrain},
                                            .quantum_log2 = kQuantum,
                                            .dgamma = sums.data(),
                                            .dbeta = sums.data() + kIn,
                                            .overflow = &overflow});
    }
    return sums;
  };
  const std::vector<int64_t> whole = run({{0, kRows}});
  for (uint32_t seed = 0; seed < 4; ++seed)
    EXPECT_EQ(run(random_pieces(seed)), whole) << seed;
}

TEST_P(ExactSumTest, CrossEntropyAndEmbeddingDoNotDependOnTheRowsOrder) {
  constexpr int64_t kVocab = 40;
  const std::vector<float> logits = normal(kRows * kVocab, 4);
  const std::vector<float> dy = normal(kRows * kIn, 5);
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < kRows; ++i)
    tokens.push_back(i * 7 % kVocab);
  std::vector<int64_t> order(kRows);
  std::iota(order.begin(), order.end(), 0);
  const std::vector<Sequence> one_row = sequences_of({1});
  auto run = [&] {
    std::vector<int64_t> sums(1 + kVocab * kIn + kIn, 0);
    OverflowFlag overflow{0};
    for (const int64_t row : order) {
      const auto at = static_cast<size_t>(row);
      kernels().cross_entropy({.rows = 1,
                               .vocab = kVocab,
                               .padded_vocab = kVocab,
                               .logits = logits.data() + row * kVocab,
                               .targets = &tokens[at],
                               .loss_sum = sums.data(),
                               .overflow = &overflow});
      kernels().embedding_backward({.rows = rows_of(one_row),
                                    .width = kIn,
                                    .tokens = &tokens[at],
                                    .dy = dy.data() + row * kIn,
                                    .quantum_log2 = kQuantum,
                                    .d_wte = sums.data() + 1,
                                    .d_wpe = sums.data() + 1 + kVocab * kIn,
                                    .overflow = &overflow});
    }
    return sums;
  };
  const std::vector<int64_t> ascending = run();
  std::mt19937 engine(1);
  std::shuffle(order.begin(), order.end(), engine);
  EXPECT_EQ(run(), ascending);
}

}  // namespace
}  // namespace trainyard::kernels::test

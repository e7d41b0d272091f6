// What decoders of Llama's kind compute beside products and attention, against double.

#include "tests/numeric/kernels/support.h"

namespace trainyard::kernels::test {
namespace {

class DecoderOpsTest : public VariantTest {};
INSTANTIATE_TEST_SUITE_P(Isa, DecoderOpsTest, one_thread_each(), name_of_variant);

constexpr int64_t kRows = 23;
constexpr float kEpsilon = 1e-5F;
constexpr int kQuantumLog2 = 38;

double tolerance_of(DType type) { return type == DType::kFloat32 ? 1e-5 : 0x1p-8; }

TEST_P(DecoderOpsTest, RmsNorm) {
  const std::vector<Sequence> sequences = sequences_of({9, 14});
  for (const int64_t width : {1, 16, 37, 200}) {
    for (const DType type : {DType::kFloat32, DType::kBFloat16}) {
      const std::vector<float> x = normal(kRows * width, 1);
      const std::vector<float> gamma = normal(width, 2);
      const std::vector<float> dy = normal(kRows * width, 3);
      const std::vector<float> before = normal(kRows * width, 4);
      Tensor y(type, kRows * width);
      std::vector<float> rstd(kRows);
      kernels().layer_norm_forward({.rows = kRows,
                                    .width = width,
                                    .centred = false,
                                    .epsilon = kEpsilon,
                                    .x = x.data(),
                                    .gamma = gamma.data(),
                                    .y = {y.data(), type},
                                    .rstd = rstd.data()});
      std::vector<float> dx = before;
      kernels().layer_norm_backward_input({.rows = kRows,
                                           .width = width,
                                           .centred = false,
                                           .dy = dy.data(),
                                           .x = x.data(),
                                           .gamma = gamma.data(),
                                           .rstd = rstd.data(),
                                           .dx = dx.data()});
      std::vector<int64_t> dgamma(static_cast<size_t>(width), 0);
      OverflowFlag overflow{0};
      kernels().layer_norm_backward_weight({.rows = kRows,
                                            .width = width,
                                            .centred = false,
                                            .dy = dy.data(),
                                            .x = x.data(),
                                            .rstd = rstd.data(),
                                            .grains = {sequences, 4},
                                            .quantum_log2 = kQuantumLog2,
                                            .partials = 7,
                                            .dgamma = dgamma.data(),
                                            .overflow = &overflow});
      EXPECT_EQ(overflow, 0U);
      const auto expected =
          reference::rms_norm(kRows, width, doubles(x), doubles(gamma), double{kEpsilon});
      auto gradient = reference::rms_norm_backward(kRows, width, doubles(dy), doubles(x),
                                                   doubles(gamma), double{kEpsilon});
      for (size_t i = 0; i < before.size(); ++i)
        gradient.dx[i] += static_cast<double>(before[i]);
      EXPECT_TRUE(near(y.doubles(), expected, 1e-6, tolerance_of(type))) << width;
      EXPECT_TRUE(near(doubles(dx), gradient.dx, 2e-5, 1e-5)) << width;
      EXPECT_TRUE(near(doubles(dgamma, kQuantumLog2), gradient.dgamma, 2e-5, 1e-5)) << width;
    }
  }
}

/// Packed projections of 4 query heads and 2 key and value heads.
struct Heads {
  static constexpr int64_t kHeads = 4;
  static constexpr int64_t kKvHeads = 2;
  static constexpr int64_t kNormed = kHeads + kKvHeads;

  int64_t dim;
  int64_t width = (kNormed + kKvHeads) * dim;
  /// Of row r, head h of the packed ones.
  reference::Vector head(const reference::Vector& all, int64_t row, int64_t h) const {
    const auto begin = all.begin() + row * width + h * dim;
    return {begin, begin + dim};
  }
};

TEST_P(DecoderOpsTest, HeadNorm) {
  for (const int64_t dim : {10, 16, 64}) {
    for (const DType type : {DType::kFloat32, DType::kBFloat16}) {
      const Heads heads{dim};
      const Tensor x(type, normal(kRows * heads.width, 1));
      const Tensor dy(type, normal(kRows * heads.width, 2));
      const std::vector<float> gammas[2] = {normal(dim, 3), normal(dim, 4)};
      Tensor y(type, kRows * heads.width);
      Tensor dx(type, kRows * heads.width);
      std::vector<float> rstd(kRows * Heads::kNormed);
      kernels().head_norm_forward({.rows = kRows,
                                   .heads = Heads::kHeads,
                                   .kv_heads = Heads::kKvHeads,
                                   .head_dim = dim,
                                   .epsilon = kEpsilon,
                                   .x = {x.data(), type},
                                   .query_gamma = gammas[0].data(),
                                   .key_gamma = gammas[1].data(),
                                   .y = {y.data(), type},
                                   .rstd = rstd.data()});
      kernels().head_norm_backward_input({.rows = kRows,
                                          .heads = Heads::kHeads,
                                          .kv_heads = Heads::kKvHeads,
                                          .head_dim = dim,
                                          .dy = {dy.data(), type},
                                          .x = {x.data(), type},
                                          .query_gamma = gammas[0].data(),
                                          .key_gamma = gammas[1].data(),
                                          .rstd = rstd.data(),
                                          .dx = {dx.data(), type}});
      std::vector<int64_t> sums[2] = {std::vector<int64_t>(static_cast<size_t>(dim)),
                                      std::vector<int64_t>(static_cast<size_t>(dim))};
      OverflowFlag overflow{0};
      const std::vector<Sequence> sequences = sequences_of({9, 14});
      kernels().head_norm_backward_weight({.rows = kRows,
                                           .heads = Heads::kHeads,
                                           .kv_heads = Heads::kKvHeads,
                                           .head_dim = dim,
                                           .dy = {dy.data(), type},
                                           .x = {x.data(), type},
                                           .rstd = rstd.data(),
                                           .grains = {sequences, 8},
                                           .quantum_log2 = kQuantumLog2,
                                           .partials = 4 * Heads::kHeads,
                                           .d_query_gamma = sums[0].data(),
                                           .d_key_gamma = sums[1].data(),
                                           .overflow = &overflow});
      EXPECT_EQ(overflow, 0U);
      const double e = tolerance_of(type);
      reference::Vector totals[2] = {reference::Vector(static_cast<size_t>(dim)),
                                     reference::Vector(static_cast<size_t>(dim))};
      for (int64_t row = 0; row < kRows; ++row) {
        for (int64_t h = 0; h < Heads::kNormed + Heads::kKvHeads; ++h) {
          const auto in = heads.head(x.doubles(), row, h);
          const auto d = heads.head(dy.doubles(), row, h);
          const auto out = heads.head(y.doubles(), row, h);
          const auto d_in = heads.head(dx.doubles(), row, h);
          if (h >= Heads::kNormed) {  // values
            EXPECT_EQ(out, in);
            EXPECT_EQ(d_in, d);
            continue;
          }
          const size_t key = h < Heads::kHeads ? 0 : 1;
          const auto gamma = doubles(gammas[key]);
          EXPECT_TRUE(near(out, reference::rms_norm(1, dim, in, gamma, double{kEpsilon}), 1e-6, e));
          const auto g = reference::rms_norm_backward(1, dim, d, in, gamma, double{kEpsilon});
          EXPECT_TRUE(near(d_in, g.dx, e, e));
          for (size_t i = 0; i < g.dgamma.size(); ++i)
            totals[key][i] += g.dgamma[i];
        }
      }
      EXPECT_TRUE(near(doubles(sums[0], kQuantumLog2), totals[0], 5e-5, 1e-5)) << dim;
      EXPECT_TRUE(near(doubles(sums[1], kQuantumLog2), totals[1], 5e-5, 1e-5)) << dim;
    }
  }
}

TEST_P(DecoderOpsTest, RopeTurnsQueriesAndKeysByTheirPositionAndBackwardTurnsBack) {
  constexpr double kTheta = 500.0;
  const std::vector<Sequence> sequences = sequences_of({9, 14}, 0, 5);
  for (const int64_t dim : {2, 10, 16, 64}) {
    for (const DType type : {DType::kFloat32, DType::kBFloat16}) {
      const Heads heads{dim};
      const Tensor x(type, normal(kRows * heads.width, 1));
      Tensor y(type, kRows * heads.width);
      std::vector<float> frequencies;
      for (int64_t i = 0; i < dim / 2; ++i) {
        frequencies.push_back(static_cast<float>(
            std::pow(kTheta, -2 * static_cast<double>(i) / static_cast<double>(dim))));
      }
      for (const bool backward : {false, true}) {
        kernels().rope({.rows = rows_of(sequences),
                        .heads = Heads::kHeads,
                        .kv_heads = Heads::kKvHeads,
                        .head_dim = dim,
                        .frequencies = frequencies,
                        .scale = 1.5F,
                        .backward = backward,
                        .x = {x.data(), type},
                        .y = {y.data(), type}});
        for (int64_t row = 0; row < kRows; ++row) {
          const int64_t position = 5 + (row < 9 ? row : row - 9);
          for (int64_t h = 0; h < Heads::kNormed + Heads::kKvHeads; ++h) {
            reference::Vector expected = heads.head(x.doubles(), row, h);
            if (h < Heads::kNormed) {
              expected = reference::rope(expected, position, kTheta, backward ? -1 : 1);
              for (double& v : expected)
                v *= 1.5;
            }
            EXPECT_TRUE(near(heads.head(y.doubles(), row, h), expected, 2e-5, tolerance_of(type)))
                << "row " << row << " head " << h;
          }
        }
      }
      // In place, the same.
      Tensor same = x;
      kernels().rope({.rows = rows_of(sequences),
                      .heads = Heads::kHeads,
                      .kv_heads = Heads::kKvHeads,
                      .head_dim = dim,
                      .frequencies = frequencies,
                      .scale = 1.5F,
                      .backward = true,
                      .x = {same.data(), type},
                      .y = {same.data(), type}});
      EXPECT_EQ(same.f32, y.f32);
      EXPECT_EQ(same.bf16, y.bf16);
    }
  }
}

// transformers multiplies position and frequency in fp32. At far positions an exact angle is
// another one, by up to 4e-4 at 8,192, and models were trained with those of fp32.
TEST_P(DecoderOpsTest, RopeTurnsFarPositionsByTheirAngleInFp32) {
  constexpr int64_t kFirst = 8185;
  constexpr int64_t kDim = 64;
  const std::vector<Sequence> sequences = sequences_of({kRows}, 0, kFirst);
  const Heads heads{kDim};
  const Tensor x(DType::kFloat32, normal(kRows * heads.width, 1));
  Tensor y(DType::kFloat32, kRows * heads.width);
  std::vector<float> frequencies;
  for (int64_t i = 0; i < kDim / 2; ++i)
    frequencies.push_back(
        static_cast<float>(std::pow(10000.0, -2.0 * static_cast<double>(i) / kDim)));
  kernels().rope({.rows = rows_of(sequences),
                  .heads = Heads::kHeads,
                  .kv_heads = Heads::kKvHeads,
                  .head_dim = kDim,
                  .frequencies = frequencies,
                  .x = {x.data(), DType::kFloat32},
                  .y = {y.data(), DType::kFloat32}});
  for (int64_t row = 0; row < kRows; ++row) {
    const reference::Vector in = heads.head(x.doubles(), row, 0);
    reference::Vector expected = in;
    for (size_t i = 0; i < kDim / 2; ++i) {
      const float angle = static_cast<float>(kFirst + row) * frequencies[i];
      const double cosine = std::cos(static_cast<double>(angle));
      const double sine = std::sin(static_cast<double>(angle));
      expected[i] = in[i] * cosine - in[i + kDim / 2] * sine;
      expected[i + kDim / 2] = in[i + kDim / 2] * cosine + in[i] * sine;
    }
    EXPECT_TRUE(near(heads.head(y.doubles(), row, 0), expected, 2e-6, 1e-6)) << "row " << row;
  }
}

TEST_P(DecoderOpsTest, GatedActivation) {
  for (const int64_t width : {1, 16, 37}) {
    for (const DType type : {DType::kFloat32, DType::kBFloat16}) {
      const Tensor x(type, normal(2 * kRows * width, 1, 3));
      const std::vector<float> dy = normal(kRows * width, 2);
      for (const Activation activation : {Activation::kSilu, Activation::kGelu}) {
        Tensor y(type, kRows * width);
        Tensor dx(type, 2 * kRows * width);
        kernels().gated_forward({.rows = kRows,
                                 .width = width,
                                 .activation = activation,
                                 .x = {x.data(), type},
                                 .y = {y.data(), type}});
        kernels().gated_backward({.rows = kRows,
                                  .width = width,
                                  .activation = activation,
                                  .dy = dy.data(),
                                  .x = {x.data(), type},
                                  .dx = {dx.data(), type}});
        const reference::Vector in = x.doubles();
        reference::Vector expected = reference::swiglu(kRows, width, in);
        reference::Vector gradient = reference::swiglu_backward(kRows, width, doubles(dy), in);
        if (activation == Activation::kGelu) {
          for (int64_t i = 0; i < kRows * width; ++i) {
            const auto gate = static_cast<size_t>(i / width * 2 * width + i % width);
            const auto up = gate + static_cast<size_t>(width);
            const auto d = static_cast<double>(dy[static_cast<size_t>(i)]);
            expected[static_cast<size_t>(i)] = reference::gelu(in[gate]) * in[up];
            gradient[gate] = d * in[up] * reference::gelu_derivative(in[gate]);
            gradient[up] = d * reference::gelu(in[gate]);
          }
        }
        EXPECT_TRUE(near(y.doubles(), expected, 1e-6, tolerance_of(type))) << width;
        EXPECT_TRUE(near(dx.doubles(), gradient, 1e-5, tolerance_of(type))) << width;
      }
    }
  }
}

TEST_P(DecoderOpsTest, EmbeddingWithoutPositions) {
  const std::vector<int32_t> tokens = {3, 0, 3, 1};
  const std::vector<Sequence> sequences = sequences_of({4});
  constexpr int64_t kWidth = 21;
  const std::vector<float> wte = normal(4 * kWidth, 1);
  const std::vector<float> dy = normal(4 * kWidth, 2);
  std::vector<float> y(dy.size());
  std::vector<int64_t> d_wte(wte.size(), 0);
  OverflowFlag overflow{0};
  kernels().embedding_forward({.rows = rows_of(sequences),
                               .width = kWidth,
                               .tokens = tokens.data(),
                               .wte = wte.data(),
                               .y = y.data()});
  kernels().embedding_backward({.rows = rows_of(sequences),
                                .width = kWidth,
                                .tokens = tokens.data(),
                                .dy = dy.data(),
                                .quantum_log2 = kQuantumLog2,
                                .partials = 4,
                                .d_wte = d_wte.data(),
                                .overflow = &overflow});
  EXPECT_EQ(overflow, 0U);
  const reference::Vector sums = doubles(d_wte, kQuantumLog2);
  for (size_t i = 0; i < kWidth; ++i) {
    EXPECT_EQ(y[i], wte[3 * kWidth + i]);
    EXPECT_EQ(y[3 * kWidth + i], wte[kWidth + i]);
    EXPECT_NEAR(sums[3 * kWidth + i], static_cast<double>(dy[i] + dy[2 * kWidth + i]), 1e-6);
    EXPECT_EQ(sums[2 * kWidth + i], 0);
  }
}

}  // namespace
}  // namespace trainyard::kernels::test

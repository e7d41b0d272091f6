// Row-wise, element-wise and table operations against their references in double.

#include "tests/numeric/kernels/support.h"

namespace trainyard::kernels::test {
namespace {

constexpr int kQuantum = 44;
const int64_t kWidths[] = {1, 15, 16, 37, 64, 131};

class OpsTest : public VariantTest {};
INSTANTIATE_TEST_SUITE_P(Isa, OpsTest, one_thread_each(), name_of_variant);

/// Half a unit in the last place of bf16, relative.
double rounding_of(DType type) { return type == DType::kFloat32 ? 0 : std::ldexp(1.0, -8); }

TEST_P(OpsTest, LayerNormForward) {
  for (const DType type : {DType::kFloat32, DType::kBFloat16}) {
    for (const int64_t width : kWidths) {
      constexpr int64_t kRows = 5;
      std::vector<float> x = normal(kRows * width, 1);
      for (float& v : x)
        v += 10.0F;  // a mean that a careless variance would trip over
      const std::vector<float> gamma = normal(width, 2);
      const std::vector<float> beta = normal(width, 3);
      Tensor y(type, kRows * width);
      std::vector<float> mean(kRows);
      std::vector<float> rstd(kRows);
      kernels().layer_norm_forward({.rows = kRows,
                                    .width = width,
                                    .x = x.data(),
                                    .gamma = gamma.data(),
                                    .beta = beta.data(),
                                    .y = {y.data(), type},
                                    .mean = mean.data(),
                                    .rstd = rstd.data()});
      const auto r = reference::layer_norm(kRows, width, doubles(x), doubles(gamma), doubles(beta),
                                           static_cast<double>(1e-5F));
      EXPECT_TRUE(near(doubles(mean), r.mean, 4e-6, 0)) << width;
      EXPECT_TRUE(near(doubles(rstd), r.rstd, 0, 1e-4)) << width;
      EXPECT_TRUE(near(y.doubles(), r.y, 3e-5, rounding_of(type))) << width;
    }
  }
}

TEST_P(OpsTest, LayerNormBackward) {
  for (const int64_t width : kWidths) {
    if (width == 1) continue;  // its gradient is a difference of equals
    constexpr int64_t kRows = 13;
    const std::vector<float> x = normal(kRows * width, 1);
    const std::vector<float> dy = normal(kRows * width, 2);
    const std::vector<float> gamma = normal(width, 3);
    const std::vector<float> beta(static_cast<size_t>(width), 0.0F);
    std::vector<float> y(x.size());
    std::vector<float> mean(kRows);
    std::vector<float> rstd(kRows);
    kernels().layer_norm_forward({.rows = kRows,
                                  .width = width,
                                  .x = x.data(),
                                  .gamma = gamma.data(),
                                  .beta = beta.data(),
                                  .y = y.data(),
                                  .mean = mean.data(),
                                  .rstd = rstd.data()});
    const std::vector<float> residual = normal(kRows * width, 4);
    std::vector<float> dx = residual;
    kernels().layer_norm_backward_input({.rows = kRows,
                                         .width = width,
                                         .dy = dy.data(),
                                         .x = x.data(),
                                         .gamma = gamma.data(),
                                         .mean = mean.data(),
                                         .rstd = rstd.data(),
                                         .dx = dx.data()});
    const std::vector<Sequence> sequences = sequences_up_to(uneven_ends(kRows, 4));
    std::vector<int64_t> dgamma(static_cast<size_t>(width), int64_t{1} << kQuantum);
    std::vector<int64_t> dbeta = dgamma;
    OverflowFlag overflow{0};
    kernels().layer_norm_backward_weight({.rows = kRows,
                                          .width = width,
                                          .dy = dy.data(),
                                          .x = x.data(),
                                          .mean = mean.data(),
                                          .rstd = rstd.data(),
                                          .grains = {sequences, kRows},
                                          .quantum_log2 = kQuantum,
                                          .dgamma = dgamma.data(),
                                          .dbeta = dbeta.data(),
                                          .overflow = &overflow});
    auto r = reference::layer_norm_backward(kRows, width, doubles(dy), doubles(x), doubles(gamma),
                                            static_cast<double>(1e-5F));
    for (size_t i = 0; i < residual.size(); ++i)
      r.dx[i] += static_cast<double>(residual[i]);
    for (double& v : r.dgamma)
      v += 1;
    for (double& v : r.dbeta)
      v += 1;
    EXPECT_TRUE(near(doubles(dx), r.dx, 4e-6, 4e-6)) << width;
    EXPECT_TRUE(near(doubles(dgamma, kQuantum), r.dgamma, 4e-6, 4e-6)) << width;
    EXPECT_TRUE(near(doubles(dbeta, kQuantum), r.dbeta, 4e-6, 4e-6)) << width;
    EXPECT_EQ(overflow, 0U);
  }
}

TEST_P(OpsTest, BiasBackwardReadsStridedRows) {
  for (const DType type : {DType::kFloat32, DType::kBFloat16}) {
    for (const int64_t width : kWidths) {
      constexpr int64_t kRows = 11;
      const int64_t stride = width + 5;
      const Tensor dy(type, normal(kRows * stride, 1));
      const std::vector<Sequence> sequences = sequences_up_to(uneven_ends(kRows, 3));
      std::vector<int64_t> d_bias(static_cast<size_t>(width), 0);
      OverflowFlag overflow{0};
      kernels().bias_backward({.rows = kRows,
                               .width = width,
                               .dy = {dy.data(), type},
                               .stride = stride,
                               .grains = {sequences, kRows},
                               .quantum_log2 = kQuantum,
                               .d_bias = d_bias.data(),
                               .overflow = &overflow});
      reference::Vector expected = reference::column_sums(kRows, stride, dy.doubles());
      expected.resize(static_cast<size_t>(width));
      EXPECT_TRUE(near(doubles(d_bias, kQuantum), expected, 4e-6, 0)) << width;
    }
  }
}

TEST_P(OpsTest, Gelu) {
  for (const DType type : {DType::kFloat32, DType::kBFloat16}) {
    std::vector<float> values = normal(1003, 1, 3.0F);
    values[0] = 0;
    values[1] = -0.0F;
    values[2] = 100;
    values[3] = -100;
    const Tensor x(type, values);
    const std::vector<float> dy = normal(1003, 2);
    Tensor y(type, 1003);
    Tensor dx(type, 1003);
    kernels().gelu_forward({.count = 1003, .x = {x.data(), type}, .y = {y.data(), type}});
    kernels().gelu_backward(
        {.count = 1003, .dy = dy.data(), .x = {x.data(), type}, .dx = {dx.data(), type}});
    reference::Vector expected_y;
    reference::Vector expected_dx;
    const reference::Vector exact = x.doubles();
    for (size_t i = 0; i < exact.size(); ++i) {
      expected_y.push_back(reference::gelu(exact[i]));
      expected_dx.push_back(reference::gelu_derivative(exact[i]) * static_cast<double>(dy[i]));
    }
    const double relative = type == DType::kFloat32 ? 3e-6 : std::ldexp(1.0, -8);
    EXPECT_TRUE(near(y.doubles(), expected_y, 1e-12, relative));
    EXPECT_TRUE(near(dx.doubles(), expected_dx, 1e-6, relative));
  }
}

TEST_P(OpsTest, DropoutDrawsWhatTheContractSays) {
  const DropoutKey key{.rate = 0.3F, .seed = 77, .op = 3};
  for (const int64_t width : kWidths) {
    constexpr int64_t kTokens = 3;
    std::vector<Sequence> sequences = sequences_of({kTokens, kTokens}, 5, 10);
    sequences[1].ordinal = (int64_t{1} << 40) + 9;
    const int64_t rows = kTokens * 2;
    const std::vector<float> x = normal(rows * width, 1);
    const std::vector<float> residual = normal(rows * width, 2);
    std::vector<float> y(x.size());
    std::vector<float> alone(x.size());
    Tensor dx(DType::kBFloat16, rows * width);
    DropoutAdd p{.rows = rows_of(sequences),
                 .width = width,
                 .dropout = key,
                 .x = x.data(),
                 .residual = residual.data(),
                 .y = y.data()};
    kernels().dropout_add(p);
    p.residual = nullptr;
    p.y = alone.data();
    kernels().dropout_add(p);
    kernels().dropout_backward({.rows = rows_of(sequences),
                                .width = width,
                                .dropout = key,
                                .dy = x.data(),
                                .dx = {dx.data(), DType::kBFloat16}});
    const float scale = 1.0F / (1.0F - key.rate);
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t i = 0; i < width; ++i) {
        const auto at = static_cast<size_t>(row * width + i);
        const bool kept =
            reference::dropout_factor(key, sequences[static_cast<size_t>(row / kTokens)].ordinal,
                                      static_cast<uint32_t>(i),
                                      static_cast<uint32_t>(10 + row % kTokens), 0xFFFFFFFFU) != 0;
        const float dropped = kept ? x[at] * scale : 0.0F;
        ASSERT_EQ(alone[at], dropped);
        ASSERT_EQ(y[at], residual[at] + dropped);
        ASSERT_EQ(dx.bf16[at], to_bf16(dropped));
      }
    }
  }
}

TEST_P(OpsTest, DropoutKeepsTheRateAndWithoutRateEverything) {
  constexpr int64_t kWidth = 100000;
  const std::vector<float> x(kWidth, 1.0F);
  std::vector<float> y(kWidth);
  const std::vector<Sequence> sequences = sequences_of({1}, 1);
  DropoutAdd p{.rows = rows_of(sequences),
               .width = kWidth,
               .dropout = {.rate = 0.1F, .seed = 1, .op = 2},
               .x = x.data(),
               .y = y.data()};
  kernels().dropout_add(p);
  const auto dropped = std::count(y.begin(), y.end(), 0.0F);
  // 4.4 standard deviations of a binomial with p = 0.1.
  EXPECT_NEAR(static_cast<double>(dropped), 0.1 * kWidth, 420);
  p.dropout.rate = 0;
  kernels().dropout_add(p);
  EXPECT_EQ(y, x);
}

TEST_P(OpsTest, Embedding) {
  for (const int64_t width : kWidths) {
    constexpr int64_t kVocab = 9;
    constexpr int64_t kPositions = 8;
    const std::vector<int32_t> tokens = {3, 8, 3, 0, 1, 3, 3, 7, 2, 2};
    const std::vector<Sequence> sequences = sequences_of({5, 5}, 0, 3);
    const Rows rows = rows_of(sequences);
    const std::vector<float> wte = normal(kVocab * width, 1);
    const std::vector<float> wpe = normal(kPositions * width, 2);
    const std::vector<float> dy = normal(rows.count * width, 3);
    std::vector<float> y(dy.size());
    kernels().embedding_forward({.rows = rows,
                                 .width = width,
                                 .tokens = tokens.data(),
                                 .wte = wte.data(),
                                 .wpe = wpe.data(),
                                 .y = y.data()});
    EXPECT_TRUE(near(doubles(y),
                     reference::embedding(width, 5, 3, tokens, doubles(wte), doubles(wpe)), 0,
                     1e-7));
    const Tensor wte_bf16(DType::kBFloat16, wte);
    const Tensor wpe_bf16(DType::kBFloat16, wpe);
    kernels().embedding_forward({.rows = rows,
                                 .width = width,
                                 .tokens = tokens.data(),
                                 .wte = {wte_bf16.data(), DType::kBFloat16},
                                 .wpe = {wpe_bf16.data(), DType::kBFloat16},
                                 .y = y.data()});
    EXPECT_TRUE(
        near(doubles(y),
             reference::embedding(width, 5, 3, tokens, wte_bf16.doubles(), wpe_bf16.doubles()), 0,
             1e-7));
    std::vector<int64_t> d_wte(wte.size(), 0);
    std::vector<int64_t> d_wpe(wpe.size(), 0);
    OverflowFlag overflow{0};
    kernels().embedding_backward({.rows = rows,
                                  .width = width,
                                  .tokens = tokens.data(),
                                  .dy = dy.data(),
                                  .quantum_log2 = kQuantum,
                                  .d_wte = d_wte.data(),
                                  .d_wpe = d_wpe.data(),
                                  .overflow = &overflow});
    const auto r =
        reference::embedding_backward(width, 5, 3, tokens, doubles(dy), kVocab, kPositions);
    // Each term is a float: only the quantum's rounding remains.
    EXPECT_TRUE(near(doubles(d_wte, kQuantum), r.d_wte, std::ldexp(4.0, -kQuantum), 0));
    EXPECT_TRUE(near(doubles(d_wpe, kQuantum), r.d_wpe, std::ldexp(4.0, -kQuantum), 0));
  }
}

TEST_P(OpsTest, CrossEntropy) {
  for (const DType type : {DType::kFloat32, DType::kBFloat16}) {
    for (const int64_t pieces : {0, 1, 12}) {
      constexpr int64_t kRows = 7;
      constexpr int64_t kVocab = 211;
      constexpr int64_t kPadded = 240;
      std::vector<float> logits = normal(kRows * kPadded, 1, 4.0F);
      for (size_t row = 0; row < kRows; ++row) {  // what lies beyond the vocabulary must not count
        for (size_t i = kVocab; i < kPadded; ++i)
          logits[row * kPadded + i] = 1000;
      }
      const std::vector<int32_t> targets = {0, 210, -1, 100, 7, 7, 150};
      const std::vector<int64_t> ends =
          pieces == 0 ? std::vector<int64_t>{} : uneven_ends(kPadded, pieces);
      int64_t loss_sum = int64_t{1} << kLossQuantumLog2;
      Tensor d_logits(type, kRows * kPadded);
      OverflowFlag overflow{0};
      kernels().cross_entropy({.rows = kRows,
                               .vocab = kVocab,
                               .padded_vocab = kPadded,
                               .piece_ends = ends,
                               .logits = logits.data(),
                               .targets = targets.data(),
                               .loss_sum = &loss_sum,
                               .d_logits = {d_logits.data(), type},
                               .overflow = &overflow});
      const auto r = reference::cross_entropy(kRows, kVocab, kPadded, doubles(logits), targets);
      EXPECT_EQ(overflow, 0U);
      EXPECT_TRUE(near(d_logits.doubles(), r.d_logits, 1e-6, rounding_of(type) + 1e-6)) << pieces;
      int64_t sum = int64_t{1} << kLossQuantumLog2;
      for (size_t row = 0; row < kRows; ++row) {
        int64_t loss = 0;
        kernels().cross_entropy({.rows = 1,
                                 .vocab = kVocab,
                                 .padded_vocab = kPadded,
                                 .piece_ends = ends,
                                 .logits = logits.data() + row * kPadded,
                                 .targets = &targets[row],
                                 .loss_sum = &loss,
                                 .overflow = &overflow});
        const double nats = std::ldexp(static_cast<double>(loss), -kLossQuantumLog2);
        EXPECT_NEAR(nats, r.losses[row], 1e-6 + 2e-6 * r.losses[row]) << pieces;
        sum += loss;
      }
      EXPECT_EQ(loss_sum, sum);
      for (size_t i = 0; i < kPadded; ++i)
        EXPECT_EQ(d_logits.doubles()[2 * kPadded + i], 0);
    }
  }
}

TEST_P(OpsTest, CrossEntropyOfNotANumberSetsTheFlagAndAddsNothing) {
  std::vector<float> logits = normal(2 * 20, 1);
  logits[25] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<int32_t> targets = {1, 2};
  int64_t with = 0;
  int64_t without = 0;
  OverflowFlag overflow{0};
  CrossEntropy p{.rows = 1,
                 .vocab = 20,
                 .padded_vocab = 20,
                 .logits = logits.data(),
                 .targets = targets.data(),
                 .loss_sum = &without,
                 .overflow = &overflow};
  kernels().cross_entropy(p);
  EXPECT_EQ(overflow, 0U);
  p.rows = 2;
  p.loss_sum = &with;
  kernels().cross_entropy(p);
  EXPECT_EQ(overflow, 1U);
  EXPECT_EQ(with, without);
}

TEST_P(OpsTest, CastAndClear) {
  const std::vector<float> x = normal(1001, 1);
  std::vector<uint16_t> y(1002, 0x1234);
  kernels().cast_to_bf16(x.data(), y.data(), 1001);
  for (size_t i = 0; i < x.size(); ++i)
    EXPECT_EQ(y[i], to_bf16(x[i]));
  EXPECT_EQ(y[1001], 0x1234);
  kernels().clear(y.data(), 2000);
  for (size_t i = 0; i < 1000; ++i)
    EXPECT_EQ(y[i], 0);
  EXPECT_EQ(y[1000], to_bf16(x[1000]));
}

}  // namespace
}  // namespace trainyard::kernels::test

// The references' backward passes against central differences of their forward passes.

#include <functional>

#include "tests/numeric/kernels/support.h"

namespace trainyard::kernels::reference {
namespace {

using test::near;

Vector random_vector(int64_t count, uint32_t seed) {
  return test::doubles(test::normal(count, seed));
}

/// Gradient of sum(weights * f(x)) by central differences. h = 1e-5: the truncation error h^2 and
/// the rounding error 1e-16 / h are both near 1e-10.
Vector difference(const std::function<Vector(const Vector&)>& f, Vector x, const Vector& weights) {
  constexpr double kStep = 1e-5;
  Vector gradient(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const double saved = x[i];
    x[i] = saved + kStep;
    const Vector above = f(x);
    x[i] = saved - kStep;
    const Vector below = f(x);
    x[i] = saved;
    for (size_t j = 0; j < weights.size(); ++j) {
      gradient[i] += weights[j] * (above[j] - below[j]) / (2 * kStep);
    }
  }
  return gradient;
}

constexpr double kTolerance = 2e-8;

TEST(ReferenceGradientTest, GeluDerivativeIsTheSlopeOfGelu) {
  for (double x = -8; x <= 8; x += 0.37) {
    const Vector slope = difference([](const Vector& v) { return Vector{gelu(v[0])}; }, {x}, {1});
    EXPECT_NEAR(gelu_derivative(x), slope[0], 1e-9) << x;
  }
}

TEST(ReferenceGradientTest, LayerNorm) {
  constexpr int64_t kRows = 3;
  constexpr int64_t kWidth = 7;
  const Vector x = random_vector(kRows * kWidth, 1);
  const Vector gamma = random_vector(kWidth, 2);
  const Vector beta = random_vector(kWidth, 3);
  const Vector dy = random_vector(kRows * kWidth, 4);
  const LayerNormGradient g = layer_norm_backward(kRows, kWidth, dy, x, gamma, 1e-5);
  auto forward = [&](const Vector& a, const Vector& b, const Vector& c) {
    return layer_norm(kRows, kWidth, a, b, c, 1e-5).y;
  };
  EXPECT_TRUE(near(g.dx,
                   difference([&](const Vector& v) { return forward(v, gamma, beta); }, x, dy),
                   kTolerance, kTolerance));
  EXPECT_TRUE(near(g.dgamma,
                   difference([&](const Vector& v) { return forward(x, v, beta); }, gamma, dy),
                   kTolerance, kTolerance));
  EXPECT_TRUE(near(g.dbeta,
                   difference([&](const Vector& v) { return forward(x, gamma, v); }, beta, dy),
                   kTolerance, kTolerance));
}

TEST(ReferenceGradientTest, ColumnSumsAreTheGradientOfABias) {
  constexpr int64_t kRows = 5;
  constexpr int64_t kWidth = 3;
  const Vector dy = random_vector(kRows * kWidth, 5);
  auto broadcast_bias = [&](const Vector& bias) {
    Vector y;
    for (int64_t row = 0; row < kRows; ++row)
      y.insert(y.end(), bias.begin(), bias.end());
    return y;
  };
  EXPECT_TRUE(near(column_sums(kRows, kWidth, dy),
                   difference(broadcast_bias, random_vector(kWidth, 6), dy), kTolerance,
                   kTolerance));
}

TEST(ReferenceGradientTest, Embedding) {
  constexpr int64_t kWidth = 3;
  constexpr int64_t kVocab = 5;
  constexpr int64_t kPositions = 6;
  const std::vector<int32_t> tokens = {4, 0, 4, 1, 4, 2, 0, 0};
  const Vector wte = random_vector(kVocab * kWidth, 7);
  const Vector wpe = random_vector(kPositions * kWidth, 8);
  const Vector dy = random_vector(static_cast<int64_t>(tokens.size()) * kWidth, 9);
  const EmbeddingGradient g = embedding_backward(kWidth, 4, 1, tokens, dy, kVocab, kPositions);
  EXPECT_TRUE(near(
      g.d_wte,
      difference([&](const Vector& v) { return embedding(kWidth, 4, 1, tokens, v, wpe); }, wte, dy),
      kTolerance, kTolerance));
  EXPECT_TRUE(near(
      g.d_wpe,
      difference([&](const Vector& v) { return embedding(kWidth, 4, 1, tokens, wte, v); }, wpe, dy),
      kTolerance, kTolerance));
}

TEST(ReferenceGradientTest, AttentionWithAndWithoutDropout) {
  const AttentionShape shape{.tokens = 6, .heads = 2, .head_dim = 3};
  const Vector qkv = random_vector(shape.tokens * 3 * shape.heads * shape.head_dim, 10);
  const Vector d_out = random_vector(shape.tokens * shape.heads * shape.head_dim, 11);
  const DropoutKey key{.rate = 0.4F, .seed = 3, .op = 4};
  const AttentionFactor plain = [](int64_t, int64_t, int64_t) { return 1.0; };
  const AttentionFactor dropped = [&](int64_t head, int64_t query, int64_t k) {
    return dropout_factor(key, 9, static_cast<uint32_t>(k), static_cast<uint32_t>(query),
                          static_cast<uint32_t>(head));
  };
  for (const AttentionFactor& factor : {plain, dropped}) {
    EXPECT_TRUE(near(
        attention_backward(shape, qkv, d_out, factor),
        difference([&](const Vector& v) { return attention(shape, v, factor).out; }, qkv, d_out),
        kTolerance, kTolerance));
  }
}

TEST(ReferenceGradientTest, CrossEntropyIgnoresPaddingAndMaskedRows) {
  constexpr int64_t kRows = 4;
  constexpr int64_t kVocab = 5;
  constexpr int64_t kPadded = 8;
  const std::vector<int32_t> targets = {2, -1, 0, 4};
  const Vector logits = random_vector(kRows * kPadded, 12);
  const CrossEntropyResult r = cross_entropy(kRows, kVocab, kPadded, logits, targets);
  EXPECT_TRUE(near(
      r.d_logits,
      difference(
          [&](const Vector& v) { return cross_entropy(kRows, kVocab, kPadded, v, targets).losses; },
          logits, Vector(kRows, 1.0)),
      kTolerance, kTolerance));
}

}  // namespace
}  // namespace trainyard::kernels::reference

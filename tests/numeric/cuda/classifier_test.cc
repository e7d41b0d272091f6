// The classifier's loss and rotary embeddings against references in double.

#include <algorithm>
#include <cmath>
#include <utility>

#include "tests/numeric/cuda/support.h"

namespace trainyard::kernels::cuda::test {
namespace {

class CudaClassifierTest : public CudaTest {
 protected:
  struct Sums {
    int64_t* loss;
    int64_t* coarse;
    uint32_t* overflow;
  };
  Sums sums() {
    return {upload(std::vector<int64_t>{0}), upload(std::vector<int64_t>{0}),
            upload(std::vector<uint32_t>{0})};
  }
};
TRAINYARD_CUDA_TEST_SUITE(CudaClassifierTest);

TEST_P(CudaClassifierTest, LossAndGradient) {
  constexpr DType kFp32 = DType::kFloat32;
  constexpr DType kBf16 = DType::kBFloat16;
  struct Shape {
    DType type, out;  ///< of equal types the gradient takes the logits' place
    int64_t vocab, padded_vocab;
  };
  for (const Shape& s :
       {Shape{kBf16, kBf16, 501, 512}, Shape{kFp32, kFp32, 77, 77}, Shape{kFp32, kFp32, 8203, 8256},
        Shape{kBf16, kBf16, 1, 8}, Shape{kFp32, kBf16, 77, 77}, Shape{kFp32, kBf16, 8203, 8256}}) {
    const auto last = static_cast<int32_t>(s.vocab - 1);
    const std::vector<int32_t> targets = {last, -1, 0, last / 2};
    const auto rows = static_cast<int64_t>(targets.size());
    std::vector<float> values = normal(rows * s.padded_vocab, 1, 3.0F);
    for (size_t i = 0; i < values.size(); ++i) {
      if (static_cast<int64_t>(i) % s.padded_vocab >= s.vocab) values[i] = 1e9F;  // padding
    }
    const Tensor logits(s.type, values);
    const auto r =
        reference::cross_entropy(rows, s.vocab, s.padded_vocab, logits.doubles(), targets);
    const Sums to = sums();
    CrossEntropy p{.rows = 1, .vocab = s.vocab, .padded_vocab = s.padded_vocab};
    auto* const on_device = static_cast<std::byte*>(upload(logits));
    p.loss_sum = to.loss;
    p.coarse_loss_sum = to.coarse;
    p.overflow = to.overflow;
    int64_t fixed = 0;
    int64_t coarse = 0;
    for (int64_t row = 0; row < rows; ++row) {
      p.logits = {on_device + row * s.padded_vocab * size_of(s.type), s.type};
      p.targets = upload(std::vector<int32_t>{targets[static_cast<size_t>(row)]});
      ASSERT_EQ(cudaSuccess, cross_entropy(p, stream_));
      const int64_t so_far = download(to.loss, 1)[0];
      const double loss = std::ldexp(static_cast<double>(so_far - fixed), -kLossQuantumLog2);
      EXPECT_TRUE(near({loss}, {r.losses[static_cast<size_t>(row)]}, 1e-5, 1e-6)) << s.vocab;
      fixed = so_far;
      coarse += static_cast<int64_t>(std::floor(loss * 8));
    }
    EXPECT_EQ(coarse, download(to.coarse, 1)[0]);
    EXPECT_EQ(logits.doubles(), download(on_device, s.type, rows * s.padded_vocab).doubles());

    p.rows = rows;
    p.logits = {on_device, s.type};
    p.targets = upload(targets);
    p.d_logits = {s.type == s.out ? on_device : allocate(s.out, rows * s.padded_vocab), s.out};
    ASSERT_EQ(cudaSuccess, cross_entropy(p, stream_));
    EXPECT_TRUE(near(download(p.d_logits.data, s.out, rows * s.padded_vocab).doubles(), r.d_logits,
                     1e-6, rounding_of(s.out) + 1e-5))
        << s.vocab;
    EXPECT_EQ(2 * fixed, download(to.loss, 1)[0]) << "the sums are added to";
    EXPECT_EQ(2 * coarse, download(to.coarse, 1)[0]);
    EXPECT_EQ(0u, download(to.overflow, 1)[0]);
    if (s.type == s.out) continue;
    EXPECT_EQ(logits.doubles(), download(on_device, s.type, rows * s.padded_vocab).doubles());
  }
}

TEST_P(CudaClassifierTest, AGradientInBf16IsThatOfFp32Rounded) {
  constexpr int64_t kRows = 3;
  constexpr int64_t kVocab = 4200;
  const std::vector<float> values = normal(kRows * kVocab, 4, 3.0F);
  const Sums to = sums();
  CrossEntropy p{.rows = kRows, .vocab = kVocab - 9, .padded_vocab = kVocab};
  p.targets = upload(std::vector<int32_t>{4190, -1, 7});
  p.loss_sum = to.loss;
  auto* const logits = upload(values);
  p.logits = logits;
  p.d_logits = {allocate<uint16_t>(kRows * kVocab), DType::kBFloat16};
  ASSERT_EQ(cudaSuccess, cross_entropy(p, stream_));
  const Tensor found = download(p.d_logits.data, DType::kBFloat16, kRows * kVocab);
  p.d_logits = logits;
  ASSERT_EQ(cudaSuccess, cross_entropy(p, stream_));
  EXPECT_EQ(Tensor(DType::kBFloat16, download(logits, kRows * kVocab)).bf16, found.bf16);
}

/// Of two ranks, the second with columns that do not count and a piece without any.
TEST_P(CudaClassifierTest, PartsOfAVocabularyHaveLossAndGradientOfTheWhole) {
  constexpr int64_t kVocab = 1043;
  constexpr int64_t kPadded = 1216;
  constexpr int64_t kWidth = kPadded / 2;
  const std::vector<int64_t> ends = {kWidth / 2, kWidth};
  const std::vector<int32_t> targets = {0, 303, 304, 607, 608, 1042, -1};
  const auto rows = static_cast<int64_t>(targets.size());
  const std::vector<float> logits = normal(rows * kPadded, 24, 3.0F);
  const auto r = reference::cross_entropy(rows, kVocab, kPadded, doubles(logits), targets);
  const auto part_of = [&](int64_t rank) {
    std::vector<float> part;
    for (int64_t row = 0; row < rows; ++row) {
      const auto first = logits.begin() + row * kPadded + rank * kWidth;
      part.insert(part.end(), first, first + kWidth);
    }
    return part;
  };
  VocabularyPart shared{.ranks = 2, .pieces = 2};
  auto* const statistics = allocate<float>(2 * rows * shared.columns());
  float* of_rank[2] = {};
  for (int64_t rank = 0; rank < 2; ++rank) {
    VocabularyStatistics p{.rows = rows,
                           .vocab = std::min<int64_t>(kVocab - rank * kWidth, kWidth),
                           .padded_vocab = kWidth,
                           .piece_ends = ends,
                           .part = shared};
    p.part.first = rank * kWidth;
    p.logits = of_rank[rank] = upload(part_of(rank));
    p.targets = upload(targets);
    p.statistics = statistics + rank * rows * shared.columns();
    ASSERT_EQ(cudaSuccess, vocabulary_statistics(p, stream_));
  }
  for (const DType out : {DType::kBFloat16, DType::kFloat32}) {  // the last in place
    std::vector<int64_t> losses;
    for (int64_t rank = 0; rank < 2; ++rank) {
      const Sums to = sums();
      CrossEntropy p{.rows = rows,
                     .vocab = std::min<int64_t>(kVocab - rank * kWidth, kWidth),
                     .padded_vocab = kWidth};
      p.logits = of_rank[rank];
      p.targets = upload(targets);
      p.loss_sum = to.loss;
      p.coarse_loss_sum = to.coarse;
      p.overflow = to.overflow;
      p.part = shared;
      p.part.first = rank * kWidth;
      p.part.statistics = statistics;
      ASSERT_EQ(cudaSuccess, cross_entropy(p, stream_)) << "loss alone";
      p.d_logits = {
          out == DType::kFloat32 ? static_cast<void*>(of_rank[rank]) : allocate(out, rows * kWidth),
          out};
      ASSERT_EQ(cudaSuccess, cross_entropy(p, stream_));
      Vector wanted;
      for (int64_t row = 0; row < rows; ++row) {
        const auto first = r.d_logits.begin() + row * kPadded + rank * kWidth;
        wanted.insert(wanted.end(), first, first + kWidth);
      }
      EXPECT_TRUE(near(download(p.d_logits.data, out, rows * kWidth).doubles(), wanted, 1e-6,
                       rounding_of(out) + 1e-5))
          << rank;
      losses.push_back(download(to.loss, 1)[0]);
      EXPECT_EQ(0u, download(to.overflow, 1)[0]);
    }
    EXPECT_EQ(losses[0], losses[1]) << "each rank knows all of it";
    double all = 0;
    for (const double loss : r.losses)
      all += 2 * loss;
    EXPECT_NEAR(std::ldexp(static_cast<double>(losses[0]), -kLossQuantumLog2), all, 1e-3);
  }
}

/// Whoever has a piece: one rank with all of them has the bits of two.
TEST_P(CudaClassifierTest, StatisticsDoNotDependOnWhoHasThePieces) {
  constexpr int64_t kVocab = 900;
  constexpr int64_t kPadded = 1024;
  const std::vector<int64_t> ends = {256, 512, 768, 1024};
  const std::vector<int32_t> targets = {3, 700};
  const std::vector<float> logits = normal(2 * kPadded, 25, 3.0F);
  const auto statistics_of = [&](int64_t first, int64_t width, int64_t pieces) {
    std::vector<float> part;
    for (int64_t row = 0; row < 2; ++row) {
      const auto begin = logits.begin() + row * kPadded + first;
      part.insert(part.end(), begin, begin + width);
    }
    VocabularyStatistics p{.rows = 2,
                           .vocab = std::min(kVocab - first, width),
                           .padded_vocab = width,
                           .piece_ends = std::span(ends).first(static_cast<size_t>(pieces)),
                           .part = {.first = first, .pieces = pieces}};
    p.logits = upload(part);
    p.targets = upload(targets);
    const int64_t count = 2 * p.part.columns();
    p.statistics = allocate<float>(count);
    EXPECT_EQ(cudaSuccess, vocabulary_statistics(p, stream_));
    return download(p.statistics, count);
  };
  const std::vector<float> whole = statistics_of(0, kPadded, 4);
  const std::vector<float> low = statistics_of(0, 512, 2);
  const std::vector<float> high = statistics_of(512, 512, 2);
  for (size_t row = 0; row < 2; ++row) {
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(whole[row * 9 + i], low[row * 5 + i]) << row;
      EXPECT_EQ(whole[row * 9 + 4 + i], high[row * 5 + i]) << row;
    }
    EXPECT_EQ(whole[row * 9 + 8], low[row * 5 + 4] + high[row * 5 + 4]) << row;
  }
}

TEST_P(CudaClassifierTest, RefusesPiecesOfSeveralLengths) {
  float memory = 0;  // no kernel runs
  const std::vector<int64_t> ends = {8, 24, 32};
  VocabularyStatistics p{.rows = 1, .vocab = 32, .padded_vocab = 32, .piece_ends = ends};
  p.logits = p.statistics = &memory;
  p.part.pieces = 3;
  EXPECT_EQ(cudaErrorInvalidValue, vocabulary_statistics(p, stream_));
  p.piece_ends = std::span(ends).first(1);
  EXPECT_EQ(cudaErrorInvalidValue, vocabulary_statistics(p, stream_)) << "not all columns";
}

/// Of exact sums with the bits that processors have.
TEST_P(CudaClassifierTest, SumsOfRanksAreRoundedOnce) {
  kernels::test::Kernels cpu(Isa::kGeneric, 1);
  for (const auto& [rows, width] : {std::pair<int64_t, int64_t>{5, 40}, {3, 13}}) {
    const std::vector<float> values = normal(rows * width, 26, 100.0F);
    const std::vector<float> bias = normal(width, 27);
    std::vector<int64_t> exact(values.size());
    for (size_t i = 0; i < values.size(); ++i)
      exact[i] = static_cast<int64_t>(std::ldexp(static_cast<double>(values[i]), 40)) + 12345;
    for (const DType out : {DType::kFloat32, DType::kBFloat16}) {
      for (const bool has_bias : {false, true}) {
        RoundExact p{.rows = rows, .width = width, .sums = upload(exact)};
        if (has_bias) p.bias = upload(bias);
        p.y = {allocate(out, rows * width), out};
        ASSERT_EQ(cudaSuccess, round_exact(p, stream_));
        const Tensor found = download(p.y.data, out, rows * width);
        Tensor wanted(out, rows * width);
        cpu->round_exact({.rows = rows,
                          .width = width,
                          .sums = exact.data(),
                          .bias = has_bias ? bias.data() : nullptr,
                          .y = {wanted.data(), out}});
        EXPECT_EQ(found.f32, wanted.f32);
        EXPECT_EQ(found.bf16, wanted.bf16);
        p.sums = upload(values);
        ASSERT_EQ(cudaSuccess, round_exact(p, stream_));
        const Tensor of_floats = download(p.y.data, out, rows * width);
        std::vector<float> sums = values;
        for (size_t i = 0; has_bias && i < sums.size(); ++i)
          sums[i] += bias[i % static_cast<size_t>(width)];
        const Tensor rounded(out, sums);
        EXPECT_EQ(of_floats.f32, rounded.f32);
        EXPECT_EQ(of_floats.bf16, rounded.bf16);
      }
    }
  }
  float memory = 0;
  EXPECT_EQ(
      cudaErrorInvalidValue,
      round_exact({.rows = 1, .width = 8, .sums = &memory, .y = &memory, .stride = 16}, stream_));
}

TEST_P(CudaClassifierTest, RefusesOtherTypes) {
  const Sums to = sums();
  CrossEntropy p{.rows = 1, .vocab = 8, .padded_vocab = 8, .loss_sum = to.loss};
  float memory = 0;  // no kernel runs
  p.logits = {&memory, DType::kBFloat16};
  p.d_logits = &memory;
  EXPECT_EQ(cudaErrorInvalidValue, cross_entropy(p, stream_));
  p.logits.type = DType::kInt32;
  EXPECT_EQ(cudaErrorInvalidValue, cross_entropy(p, stream_));
  p.logits.type = DType::kFloat32;
  p.part.statistics = &memory;
  EXPECT_EQ(cudaErrorInvalidValue, cross_entropy(p, stream_));
}

TEST_P(CudaClassifierTest, ALossThatIsNotFiniteRaisesTheFlag) {
  const Sums to = sums();
  CrossEntropy p{.rows = 1, .vocab = 8, .padded_vocab = 8};
  p.logits = upload(std::vector<float>(8, std::nanf("")));
  p.targets = upload(std::vector<int32_t>{3});
  p.loss_sum = to.loss;
  p.overflow = to.overflow;
  ASSERT_EQ(cudaSuccess, cross_entropy(p, stream_));
  EXPECT_EQ(1u, download(to.overflow, 1)[0]);
  EXPECT_EQ(0, download(to.loss, 1)[0]);
}

TEST_P(CudaClassifierTest, RopeTurnsQueriesAndKeysAndBack) {
  constexpr int64_t kTokens = 5;
  constexpr int64_t kRows = 2 * kTokens;
  constexpr int64_t kOffset = 3;
  constexpr double kTheta = 10000;
  for (const DType type : {DType::kFloat32, DType::kBFloat16}) {
    for (const int64_t head_dim : {int64_t{64}, int64_t{128}}) {
      const int64_t heads = 3;                        // two of queries, one of keys
      const int64_t stride = (heads + 1) * head_dim;  // and one of values, which is copied
      std::vector<float> table;
      for (int64_t position = 0; position < kTokens + kOffset; ++position) {
        for (int64_t i = 0; i < head_dim / 2; ++i) {
          const double exponent = -2 * static_cast<double>(i) / static_cast<double>(head_dim);
          const double angle = static_cast<double>(position) * std::pow(kTheta, exponent);
          table.push_back(static_cast<float>(std::cos(angle)));
          table.push_back(static_cast<float>(std::sin(angle)));
        }
      }
      const Tensor x(type, normal(kRows * stride, 2));
      const DeviceRows rows = upload(sequences_of({kTokens, kTokens}, 0, kOffset));
      Rope p{.heads = 2, .kv_heads = 1, .head_dim = head_dim, .x = {upload(x), type}};
      const float* const angles = upload(table);
      for (const bool backward : {false, true}) {
        p.y = {backward ? const_cast<void*>(p.x.data) : allocate(type, kRows * stride), type};
        const Vector before = download(p.x.data, type, kRows * stride).doubles();
        Vector expected = before;
        for (int64_t row = 0; row < kRows; ++row) {
          for (int64_t head = 0; head < heads; ++head) {
            const auto first = before.begin() + row * stride + head * head_dim;
            const Vector turned = reference::rope(
                {first, first + head_dim}, kOffset + row % kTokens, kTheta, backward ? -1 : 1);
            std::copy(turned.begin(), turned.end(),
                      expected.begin() + row * stride + head * head_dim);
          }
        }
        p.backward = backward;
        ASSERT_EQ(cudaSuccess, rope(p, rows, angles, stream_));
        EXPECT_TRUE(near(download(p.y.data, type, kRows * stride).doubles(), expected, 2e-6,
                         rounding_of(type) + 1e-6));
        p.x = p.y;
      }
    }
  }
}

}  // namespace
}  // namespace trainyard::kernels::cuda::test

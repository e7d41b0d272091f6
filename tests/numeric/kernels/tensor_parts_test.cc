// What ranks that share products, a vocabulary or a table make of their parts has the bits of the
// whole, on every instruction set.

#include <algorithm>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "tests/numeric/kernels/support.h"

namespace trainyard::kernels::test {
namespace {

constexpr int64_t kRows = 7;

class TensorPartsTest : public testing::TestWithParam<std::tuple<Isa, DType>> {
 protected:
  Kernels kernels_{std::get<0>(GetParam()), 2};
  DType type_ = std::get<1>(GetParam());
};

TEST_P(TensorPartsTest, SumsOfPartsRoundToWhatOneProductDoes) {
  constexpr int64_t kInputs = 101;
  constexpr int64_t kOutputs = 37;
  const std::vector<int64_t> ends = {8, 17, 50, 51, 84, 101};
  const Tensor x(type_, normal(kRows * kInputs, 1));
  const Tensor w(type_, normal(kInputs * kOutputs, 2));
  const std::vector<float> bias = normal(kOutputs, 3);
  for (const DType out : {DType::kFloat32, DType::kBFloat16}) {
    OverflowFlag overflow{0};
    GemmParams whole{.m = kRows, .n = kOutputs, .k = kInputs};
    whole.a = x.data();
    whole.lda = kInputs;
    whole.b = w.data();
    whole.ldb = kOutputs;
    whole.input = type_;
    whole.chain_ends = ends;
    whole.output = GemmOutput::kExactRound;
    whole.bias = bias.data();
    Tensor wanted(out, kRows * kOutputs);
    whole.c = wanted.data();
    whole.ldc = kOutputs;
    whole.c_type = out;
    whole.overflow = &overflow;
    kernels_->gemm(whole);

    std::vector<int64_t> sums(kRows * kOutputs, 0);
    for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{50, 101}, {0, 50}}) {
      std::vector<int64_t> own;
      for (const int64_t of_all : ends) {
        if (of_all > begin && of_all <= end) own.push_back(of_all - begin);
      }
      std::vector<int64_t> part(sums.size(), -1);
      GemmParams gemm = whole;
      gemm.k = end - begin;
      gemm.a = static_cast<const char*>(x.data()) + begin * size_of(type_);
      gemm.b = static_cast<const char*>(w.data()) + begin * kOutputs * size_of(type_);
      gemm.chain_ends = own;
      gemm.output = GemmOutput::kExactAccumulate;
      gemm.overwrite = true;
      gemm.partials = std::ssize(ends);
      gemm.bias = nullptr;
      gemm.c = part.data();
      gemm.c_type = DType::kInt64;
      kernels_->gemm(gemm);
      std::transform(sums.begin(), sums.end(), part.begin(), sums.begin(), std::plus<>());
    }
    Tensor found(out, kRows * kOutputs);
    kernels_->round_exact({.rows = kRows,
                           .width = kOutputs,
                           .sums = sums.data(),
                           .bias = bias.data(),
                           .y = {found.data(), out}});
    EXPECT_EQ(found.f32, wanted.f32);
    EXPECT_EQ(found.bf16, wanted.bf16);
    EXPECT_EQ(overflow, 0U);
  }
}

TEST_P(TensorPartsTest, PartsOfAVocabularyHaveLossAndGradientOfTheWhole) {
  constexpr int64_t kVocab =
      83;  // the last rank has columns that do not count, and one piece without any
  constexpr int64_t kPadded = 128;
  const std::vector<int64_t> ends = {21, 42, 64, 85, 106, 128};
  const std::vector<float> logits = normal(kRows * kPadded, 4, 3.0F);
  const std::vector<int32_t> targets = {0, 41, 42, 63, 64, 82, -1};
  OverflowFlag overflow{0};
  CrossEntropy whole{.rows = kRows,
                     .vocab = kVocab,
                     .padded_vocab = kPadded,
                     .piece_ends = ends,
                     .logits = logits.data(),
                     .targets = targets.data()};
  int64_t wanted_loss = 0;
  Tensor wanted(type_, kRows * kPadded);
  whole.loss_sum = &wanted_loss;
  whole.d_logits = {wanted.data(), type_};
  whole.overflow = &overflow;
  kernels_->cross_entropy(whole);

  struct Rank {
    int64_t begin, end;
    std::vector<int64_t> ends;
  };
  const std::vector<Rank> ranks = {{0, 42, {21, 42}}, {42, 85, {22, 43}}, {85, 128, {21, 43}}};
  const VocabularyPart shared{.ranks = std::ssize(ranks), .pieces = 2};
  std::vector<float> statistics(static_cast<size_t>(shared.ranks * kRows * shared.columns()),
                                -1.0F);
  std::vector<std::vector<float>> parts;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const int64_t width = ranks[rank].end - ranks[rank].begin;
    std::vector<float>& part = parts.emplace_back();
    for (int64_t row = 0; row < kRows; ++row) {
      const auto first = logits.begin() + row * kPadded + ranks[rank].begin;
      part.insert(part.end(), first, first + width);
    }
    VocabularyStatistics p{.rows = kRows,
                           .vocab = std::clamp<int64_t>(kVocab - ranks[rank].begin, 0, width),
                           .padded_vocab = width,
                           .piece_ends = ranks[rank].ends,
                           .logits = part.data(),
                           .targets = targets.data(),
                           .part = shared};
    p.part.first = ranks[rank].begin;
    p.statistics = statistics.data() + static_cast<int64_t>(rank) * kRows * shared.columns();
    kernels_->vocabulary_statistics(p);
  }
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const int64_t width = ranks[rank].end - ranks[rank].begin;
    CrossEntropy p = whole;
    p.vocab = std::clamp<int64_t>(kVocab - ranks[rank].begin, 0, width);
    p.padded_vocab = width;
    p.piece_ends = ranks[rank].ends;
    p.logits = parts[rank].data();
    int64_t loss = 0;
    p.loss_sum = &loss;
    Tensor found(type_, kRows * width);
    p.d_logits = {found.data(), type_};
    p.part = shared;
    p.part.first = ranks[rank].begin;
    p.part.statistics = statistics.data();
    kernels_->cross_entropy(p);
    EXPECT_EQ(loss, wanted_loss) << "each rank knows all of it";
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t column = 0; column < width; ++column) {
        const auto of_part = static_cast<size_t>(row * width + column);
        const auto of_all = static_cast<size_t>(row * kPadded + ranks[rank].begin + column);
        if (type_ == DType::kFloat32) {
          ASSERT_EQ(found.f32[of_part], wanted.f32[of_all]) << row << ", " << of_all;
        } else {
          ASSERT_EQ(found.bf16[of_part], wanted.bf16[of_all]) << row << ", " << of_all;
        }
      }
    }
  }
  EXPECT_EQ(overflow, 0U);
}

TEST_P(TensorPartsTest, RowsOfATableComeFromWhoHasThemAndPositionsOnce) {
  constexpr int64_t kWidth = 19;
  constexpr int64_t kVocab = 12;
  const Tensor wte(type_, normal(kVocab * kWidth, 5));
  const Tensor wpe(type_, normal(kRows * kWidth, 6));
  const std::vector<int32_t> tokens = {0, 4, 5, 11, 4, 0, 7};
  const std::vector<Sequence> sequences = sequences_of({kRows}, 0, 0);
  const Rows rows{.count = kRows, .sequences = sequences};
  std::vector<float> wanted(kRows * kWidth);
  EmbeddingForward whole{.rows = rows, .width = kWidth, .tokens = tokens.data()};
  whole.wte = {wte.data(), type_};
  whole.wpe = {wpe.data(), type_};
  whole.y = {wanted.data(), DType::kFloat32};
  kernels_->embedding_forward(whole);

  std::vector<uint32_t> bits(kRows * kWidth, 0);
  for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 5}, {5, 7}}) {
    std::vector<float> part(kRows * kWidth, 1.0F);
    EmbeddingForward p = whole;
    p.held = {.first = first, .count = count};
    p.wte = {static_cast<const char*>(wte.data()) + first * kWidth * size_of(type_), type_};
    p.wpe = {};
    p.y = {part.data(), DType::kFloat32};
    kernels_->embedding_forward(p);
    for (size_t i = 0; i < bits.size(); ++i)
      bits[i] += std::bit_cast<uint32_t>(part[i]);
  }
  std::vector<float> found(kRows * kWidth);
  std::memcpy(found.data(), bits.data(), bits.size() * sizeof(float));
  EmbeddingForward positions = whole;
  positions.wte = {};
  positions.y = {found.data(), DType::kFloat32};
  kernels_->embedding_forward(positions);
  EXPECT_EQ(found, wanted);
}

INSTANTIATE_TEST_SUITE_P(All, TensorPartsTest,
                         testing::Combine(testing::ValuesIn(available_isas()),
                                          testing::Values(DType::kFloat32, DType::kBFloat16)));

}  // namespace
}  // namespace trainyard::kernels::test

// The classifier's loss and rotary embeddings against references in double.

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

TEST_P(CudaClassifierTest, LossAndGradientInPlace) {
  struct Shape {
    DType type;
    int64_t vocab, padded_vocab;
  };
  for (const Shape& s : {Shape{DType::kBFloat16, 501, 512}, Shape{DType::kFloat32, 77, 77},
                         Shape{DType::kFloat32, 8203, 8256}, Shape{DType::kBFloat16, 1, 8}}) {
    const auto last = static_cast<int32_t>(s.vocab - 1);
    const std::vector<int32_t> targets = {last, -1, 0, last / 2};
    const auto rows = static_cast<int64_t>(targets.size());
    std::vector<float> values = normal(rows * s.padded_vocab, 1, 3.0F);
    for (size_t i = 0; i < values.size(); ++i) {
      if (static_cast<int64_t>(i) % s.padded_vocab >= s.vocab) values[i] = 1e9F;  // padding
    }
    const Tensor logits(s.type, values);
    const Sums to = sums();
    CrossEntropy p{.rows = rows, .vocab = s.vocab, .padded_vocab = s.padded_vocab};
    p.type = s.type;
    p.logits = upload(logits);
    p.targets = upload(targets);
    p.loss_only = true;
    p.losses = allocate<float>(rows);
    p.loss_sum = to.loss;
    p.coarse_loss_sum = to.coarse;
    p.overflow = to.overflow;
    ASSERT_EQ(cudaSuccess, cross_entropy(p, stream_));
    EXPECT_EQ(logits.doubles(), download(p.logits, s.type, rows * s.padded_vocab).doubles());

    const auto r =
        reference::cross_entropy(rows, s.vocab, s.padded_vocab, logits.doubles(), targets);
    const std::vector<float> losses = download(p.losses, rows);
    EXPECT_TRUE(near(doubles(losses), r.losses, 1e-5, 1e-6)) << s.vocab;
    int64_t fixed = 0;
    int64_t coarse = 0;
    for (const float loss : losses) {
      fixed += std::llrint(std::ldexp(static_cast<double>(loss), kLossQuantumLog2));
      coarse += static_cast<int64_t>(std::floor(loss * 8.0F));
    }
    EXPECT_EQ(fixed, download(to.loss, 1)[0]);
    EXPECT_EQ(coarse, download(to.coarse, 1)[0]);

    p.loss_only = false;
    ASSERT_EQ(cudaSuccess, cross_entropy(p, stream_));
    EXPECT_TRUE(near(download(p.logits, s.type, rows * s.padded_vocab).doubles(), r.d_logits, 1e-6,
                     rounding_of(s.type) + 1e-5))
        << s.vocab;
    EXPECT_EQ(2 * fixed, download(to.loss, 1)[0]) << "the sums are added to";
    EXPECT_EQ(0u, download(to.overflow, 1)[0]);
  }
}

TEST_P(CudaClassifierTest, ALossThatIsNotFiniteRaisesTheFlag) {
  const Sums to = sums();
  CrossEntropy p{.rows = 1, .vocab = 8, .padded_vocab = 8, .type = DType::kFloat32};
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
      const int64_t stride = (heads + 1) * head_dim;  // and one of values, which stays
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
      Rope p{.rows = upload(sequences_of({kTokens, kTokens}, 0, kOffset))};
      p.heads = heads;
      p.head_dim = head_dim;
      p.stride = stride;
      p.type = type;
      p.qkv = upload(x);
      p.table = upload(table);
      for (const bool backward : {false, true}) {
        const Vector before = download(p.qkv, type, kRows * stride).doubles();
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
        ASSERT_EQ(cudaSuccess, rope(p, stream_));
        EXPECT_TRUE(near(download(p.qkv, type, kRows * stride).doubles(), expected, 2e-6,
                         rounding_of(type) + 1e-6));
      }
    }
  }
}

}  // namespace
}  // namespace trainyard::kernels::cuda::test

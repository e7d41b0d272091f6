// Attention against the reference in double, forward and backward.

#include "tests/numeric/cuda/support.h"

namespace trainyard::kernels::cuda::test {
namespace {

struct Case {
  int64_t tokens, heads, kv_heads, head_dim;
  bool causal;
  std::vector<int32_t> lengths;  ///< empty: none
  float dropout = 0;
  DType type = DType::kBFloat16;
};

class CudaAttentionTest : public CudaTest {
 protected:
  static constexpr int64_t kSamples = 2;

  void check(const Case& c) {
    const int64_t row = (c.heads + 2 * c.kv_heads) * c.head_dim;
    const int64_t out_row = c.heads * c.head_dim;
    const Tensor qkv(c.type, normal(kSamples * c.tokens * row, 1));
    const Tensor d_out(c.type, normal(kSamples * c.tokens * out_row, 2));
    const bool is_bf16 = c.type == DType::kBFloat16;
    const std::vector<int64_t> samples = {9, (int64_t{1} << 34) + 1};
    AttentionForward f{.samples_count = kSamples, .tokens = c.tokens, .heads = c.heads};
    f.kv_heads = c.kv_heads;
    f.head_dim = c.head_dim;
    f.causal = c.causal;
    f.lengths = c.lengths.empty() ? nullptr : upload(c.lengths);
    f.head_offset = 5;
    f.samples = upload(samples);
    f.dropout = {.rate = c.dropout, .seed = 3, .op = 4};
    f.type = c.type;
    f.qkv = upload(qkv);
    f.out = allocate(c.type, kSamples * c.tokens * out_row);
    f.lse = allocate<float>(kSamples * c.heads * c.tokens);
    ASSERT_EQ(cudaSuccess, attention_forward(f, stream_));
    AttentionBackward b{.samples_count = kSamples, .tokens = c.tokens, .heads = c.heads};
    b.kv_heads = c.kv_heads;
    b.head_dim = c.head_dim;
    b.causal = c.causal;
    b.lengths = f.lengths;
    b.head_offset = f.head_offset;
    b.samples = f.samples;
    b.dropout = f.dropout;
    b.type = c.type;
    b.qkv = f.qkv;
    b.out = f.out;
    b.d_out = upload(d_out);
    b.lse = f.lse;
    b.d_qkv = allocate(c.type, kSamples * c.tokens * row);
    b.scratch = allocate<float>(kSamples * c.heads * c.tokens);
    ASSERT_EQ(cudaSuccess, attention_backward(b, stream_));

    const Vector out = download(f.out, c.type, kSamples * c.tokens * out_row).doubles();
    const Vector lse = doubles(download(f.lse, kSamples * c.heads * c.tokens));
    const Vector d_qkv = download(b.d_qkv, c.type, kSamples * c.tokens * row).doubles();
    for (int64_t sample = 0; sample < kSamples; ++sample) {
      reference::AttentionShape shape{c.tokens, c.heads, c.head_dim, c.kv_heads, c.causal, -1};
      if (!c.lengths.empty()) shape.length = c.lengths[static_cast<size_t>(sample)];
      const auto factor = [&](int64_t head, int64_t query, int64_t key) {
        return reference::dropout_factor(f.dropout, samples[static_cast<size_t>(sample)],
                                         static_cast<uint32_t>(key), static_cast<uint32_t>(query),
                                         static_cast<uint32_t>(f.head_offset + head));
      };
      const Vector x = part(qkv.doubles(), sample);
      const auto r = reference::attention(shape, x, factor);
      if (shape.length != 0) {
        EXPECT_TRUE(near(part(lse, sample), r.lse, is_bf16 ? 1e-4 : 1e-6, is_bf16 ? 1e-4 : 1e-6));
      }
      // Five roundings to bf16: P, dS, dO, out and the result.
      const double e = is_bf16 ? 5 * 0x1p-9 : 4e-6;
      const Vector dy = part(d_out.doubles(), sample);
      const auto terms = reference::attention_magnitudes(shape, x, dy, factor);
      EXPECT_TRUE(within(part(out, sample), r.out, terms.out, e)) << "sample " << sample;
      EXPECT_TRUE(within(part(d_qkv, sample), reference::attention_backward(shape, x, dy, factor),
                         terms.d_qkv, e))
          << "sample " << sample;
    }
  }

  static Vector part(const Vector& all, int64_t sample) {
    const auto size = static_cast<int64_t>(all.size()) / kSamples;
    return {all.begin() + sample * size, all.begin() + (sample + 1) * size};
  }
};
TRAINYARD_CUDA_TEST_SUITE(CudaAttentionTest);

TEST_P(CudaAttentionTest, Causal) { check({77, 2, 2, 64, true, {}}); }
TEST_P(CudaAttentionTest, CausalOfWideHeads) { check({70, 1, 1, 128, true, {}}); }
TEST_P(CudaAttentionTest, GroupedQueries) { check({67, 4, 2, 64, true, {}}); }
TEST_P(CudaAttentionTest, BidirectionalWithPadding) { check({140, 1, 1, 64, false, {133, 15}}); }
TEST_P(CudaAttentionTest, ASampleWithoutKeysGivesZero) { check({9, 1, 1, 64, false, {0, 9}}); }
TEST_P(CudaAttentionTest, BidirectionalOfWideHeadsInGroups) { check({35, 2, 1, 128, false, {}}); }
TEST_P(CudaAttentionTest, DropoutHasTheMaskOfTheCpu) { check({66, 2, 1, 64, true, {}, 0.25F}); }
TEST_P(CudaAttentionTest, OneToken) { check({1, 1, 1, 64, true, {}}); }

constexpr DType kFp32 = DType::kFloat32;
TEST_P(CudaAttentionTest, Fp32Causal) { check({37, 2, 2, 64, true, {}, 0, kFp32}); }
TEST_P(CudaAttentionTest, Fp32CausalOfWideHeads) { check({35, 1, 1, 128, true, {}, 0, kFp32}); }
TEST_P(CudaAttentionTest, Fp32GroupedQueries) { check({19, 4, 2, 64, true, {}, 0, kFp32}); }
TEST_P(CudaAttentionTest, Fp32BidirectionalWithPadding) {
  check({37, 1, 1, 64, false, {33, 3}, 0, kFp32});
}
TEST_P(CudaAttentionTest, Fp32SampleWithoutKeysGivesZero) {
  check({9, 1, 1, 64, false, {0, 9}, 0, kFp32});
}
TEST_P(CudaAttentionTest, Fp32BidirectionalOfWideHeadsInGroups) {
  check({13, 2, 1, 128, false, {}, 0, kFp32});
}
TEST_P(CudaAttentionTest, Fp32DropoutHasTheMaskOfTheCpu) {
  check({27, 2, 1, 64, true, {}, 0.25F, kFp32});
}
TEST_P(CudaAttentionTest, Fp32OneToken) { check({1, 1, 1, 64, true, {}, 0, kFp32}); }

TEST_P(CudaAttentionTest, TakesMoreHeadsThanAGridIsHigh) {
  // Captured, not run.
  ASSERT_EQ(cudaSuccess, cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
  AttentionForward p{.samples_count = 4096, .tokens = 512, .heads = 20, .kv_heads = 20};
  p.head_dim = 64;
  EXPECT_EQ(cudaSuccess, attention_forward(p, stream_));
  AttentionBackward b{.samples_count = 4096, .tokens = 512, .heads = 20, .kv_heads = 20};
  b.head_dim = 64;
  EXPECT_EQ(cudaSuccess, attention_backward(b, stream_));
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaSuccess, cudaStreamEndCapture(stream_, &graph));
  EXPECT_EQ(cudaSuccess, cudaGraphDestroy(graph));
  p.samples_count = int64_t{1} << 24;
  EXPECT_EQ(cudaErrorInvalidValue, attention_forward(p, stream_));
}

TEST_P(CudaAttentionTest, RefusesOtherHeadDimensionsTypesAndGroups) {
  AttentionForward p{.samples_count = 1, .tokens = 8, .heads = 3, .kv_heads = 3, .head_dim = 96};
  EXPECT_EQ(cudaErrorInvalidValue, attention_forward(p, stream_));
  p.head_dim = 64;
  p.type = DType::kInt64;
  EXPECT_EQ(cudaErrorInvalidValue, attention_forward(p, stream_));
  p.type = DType::kFloat32;
  p.kv_heads = 2;
  EXPECT_EQ(cudaErrorInvalidValue, attention_forward(p, stream_));
  AttentionBackward b{.samples_count = 1, .tokens = 8, .heads = 3, .kv_heads = 3, .head_dim = 96};
  EXPECT_EQ(cudaErrorInvalidValue, attention_backward(b, stream_));
}

}  // namespace
}  // namespace trainyard::kernels::cuda::test

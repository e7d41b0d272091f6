// Attention against the reference in double, forward and backward.

#include <cmath>
#include <numeric>
#include <utility>

#include "tests/numeric/cuda/support.h"

namespace trainyard::kernels::cuda::test {
namespace {

struct Case {
  std::vector<int64_t> lengths;
  int64_t heads, kv_heads, head_dim;
  bool causal;
  float dropout = 0;
  DType type = DType::kBFloat16;
  int64_t window = 0;
};

class CudaAttentionTest : public CudaTest {
 protected:
  /// Both passes over sequences of these lengths.
  struct Passes {
    DeviceRows of;
    AttentionForward f;
    AttentionBackward b;
    int64_t row, out_row;  ///< elements

    int64_t rows() const { return of.count; }
  };
  Passes run(const Case& c, const std::vector<Sequence>& sequences, const Tensor& qkv,
             const Tensor& d_out) {
    Passes all{.row = (c.heads + 2 * c.kv_heads) * c.head_dim, .out_row = c.heads * c.head_dim};
    AttentionForward& f = all.f;
    all.of = upload(sequences);
    f.heads = c.heads;
    f.kv_heads = c.kv_heads;
    f.head_dim = c.head_dim;
    f.causal = c.causal;
    f.window = c.window;
    f.head_offset = 5;
    f.dropout = {.rate = c.dropout, .seed = 3, .op = 4};
    f.qkv = {upload(qkv), c.type};
    f.out = {allocate(c.type, all.rows() * all.out_row), c.type};
    f.lse = allocate<float>(all.rows() * c.heads);
    EXPECT_EQ(cudaSuccess, attention_forward(f, all.of, stream_));
    AttentionBackward& b = all.b;
    b.heads = c.heads;
    b.kv_heads = c.kv_heads;
    b.head_dim = c.head_dim;
    b.causal = c.causal;
    b.window = c.window;
    b.head_offset = f.head_offset;
    b.dropout = f.dropout;
    b.qkv = f.qkv;
    b.out = f.out;
    b.d_out = {upload(d_out), c.type};
    b.lse = f.lse;
    b.d_qkv = {allocate(c.type, all.rows() * all.row), c.type};
    float* const scratch = allocate<float>(all.rows() * c.heads);
    EXPECT_EQ(cudaSuccess, attention_backward(b, all.of, scratch, stream_));
    return all;
  }

  static std::vector<Sequence> sequences_of_case(const Case& c) {
    std::vector<Sequence> sequences = sequences_of(c.lengths, 9);
    sequences.back().ordinal = (int64_t{1} << 34) + 1;
    return sequences;
  }
  static Tensor inputs(const Case& c, int64_t row, uint32_t seed) {
    return {c.type,
            normal(std::accumulate(c.lengths.begin(), c.lengths.end(), int64_t{0}) * row, seed)};
  }

  void check(const Case& c) {
    const std::vector<Sequence> sequences = sequences_of_case(c);
    const Tensor qkv = inputs(c, (c.heads + 2 * c.kv_heads) * c.head_dim, 1);
    const Tensor d_out = inputs(c, c.heads * c.head_dim, 2);
    const bool is_bf16 = c.type == DType::kBFloat16;
    const Passes all = run(c, sequences, qkv, d_out);
    const Vector out = download(all.f.out.data, c.type, all.rows() * all.out_row).doubles();
    const Vector lse = doubles(download(all.f.lse, all.rows() * c.heads));
    const Vector d_qkv = download(all.b.d_qkv.data, c.type, all.rows() * all.row).doubles();
    for (const Sequence& sequence : sequences) {
      const reference::AttentionShape shape{sequence.length, c.heads,  c.head_dim,
                                            c.kv_heads,      c.causal, c.window};
      const auto factor = [&](int64_t head, int64_t query, int64_t key) {
        return reference::dropout_factor(all.f.dropout, sequence.ordinal,
                                         static_cast<uint32_t>(key), static_cast<uint32_t>(query),
                                         static_cast<uint32_t>(all.f.head_offset + head));
      };
      const auto part = [&](const Vector& of_all, int64_t row) {
        return Vector(of_all.begin() + sequence.begin * row,
                      of_all.begin() + (sequence.begin + sequence.length) * row);
      };
      const Vector x = part(qkv.doubles(), all.row);
      const auto r = reference::attention(shape, x, factor);
      EXPECT_TRUE(near(part(lse, c.heads), r.lse, is_bf16 ? 1e-4 : 1e-6, is_bf16 ? 1e-4 : 1e-6));
      // Five roundings to bf16: P, dS, dO, out and the result.
      const double e = is_bf16 ? 5 * 0x1p-9 : 4e-6;
      const Vector dy = part(d_out.doubles(), all.out_row);
      const auto terms = reference::attention_magnitudes(shape, x, dy, factor);
      EXPECT_TRUE(within(part(out, all.out_row), r.out, terms.out, e)) << sequence.begin;
      EXPECT_TRUE(within(part(d_qkv, all.row), reference::attention_backward(shape, x, dy, factor),
                         terms.d_qkv, e))
          << sequence.begin;
    }
  }

  /// Each sequence has the bits that it has alone.
  void check_alone(const Case& c) {
    const std::vector<Sequence> sequences = sequences_of_case(c);
    const Tensor qkv = inputs(c, (c.heads + 2 * c.kv_heads) * c.head_dim, 1);
    const Tensor d_out = inputs(c, c.heads * c.head_dim, 2);
    const Passes all = run(c, sequences, qkv, d_out);
    const Vector together[] = {download(all.f.out.data, c.type, all.rows() * all.out_row).doubles(),
                               doubles(download(all.f.lse, all.rows() * c.heads)),
                               download(all.b.d_qkv.data, c.type, all.rows() * all.row).doubles()};
    Vector alone[3];
    for (Sequence sequence : sequences) {
      const int64_t first = std::exchange(sequence.begin, 0);
      const Passes one = run(c, {sequence}, part(qkv, first, sequence.length, all.row),
                             part(d_out, first, sequence.length, all.out_row));
      const Vector found[] = {download(one.f.out.data, c.type, one.rows() * one.out_row).doubles(),
                              doubles(download(one.f.lse, one.rows() * c.heads)),
                              download(one.b.d_qkv.data, c.type, one.rows() * one.row).doubles()};
      for (size_t i = 0; i < 3; ++i)
        alone[i].insert(alone[i].end(), found[i].begin(), found[i].end());
    }
    for (size_t i = 0; i < 3; ++i)
      EXPECT_EQ(together[i], alone[i]) << i;
  }

  static Tensor part(const Tensor& all, int64_t first, int64_t count, int64_t row) {
    Tensor some = all;
    const auto cut = [&](auto& values) {
      if (!values.empty())
        values = {values.begin() + first * row, values.begin() + (first + count) * row};
    };
    cut(some.f32);
    cut(some.bf16);
    return some;
  }
};
TRAINYARD_CUDA_TEST_SUITE(CudaAttentionTest);

TEST_P(CudaAttentionTest, Causal) { check({{77, 77}, 2, 2, 64, true}); }
TEST_P(CudaAttentionTest, CausalOfWideHeads) { check({{70, 70}, 1, 1, 128, true}); }
TEST_P(CudaAttentionTest, CausalOfOtherHeads) {
  check({{70, 9}, 2, 1, 32, true});
  check({{70, 9}, 2, 1, 96, true});
  check({{66}, 1, 1, 32, false, 0.25F});
  check({{66}, 1, 1, 96, false, 0.25F});
  check({{100}, 1, 1, 96, true, 0, DType::kBFloat16, 33});
}
TEST_P(CudaAttentionTest, GroupedQueries) { check({{67, 67}, 4, 2, 64, true}); }
TEST_P(CudaAttentionTest, BidirectionalOfAnyLength) { check({{133, 15, 1}, 1, 1, 64, false}); }
TEST_P(CudaAttentionTest, BidirectionalOfWideHeadsInGroups) { check({{35, 35}, 2, 1, 128, false}); }
TEST_P(CudaAttentionTest, DropoutHasTheMaskOfTheCpu) { check({{66, 9}, 2, 1, 64, true, 0.25F}); }
// A key beyond the end has score 0: its weight would be infinite, and its gradient no number.
TEST_P(CudaAttentionTest, ScoresFarBelowZeroShowNoKeyBeyondTheEnd) {
  const Case c{{63}, 1, 1, 64, false};
  std::vector<float> values;
  for (int64_t row = 0; row < c.lengths[0]; ++row) {
    for (const float part : {4.0F, -4.0F, 1.0F})  // query, key, value
      values.insert(values.end(), static_cast<size_t>(c.head_dim), part);
  }
  const std::vector<float> ones(static_cast<size_t>(c.lengths[0] * c.head_dim), 1.0F);
  const Passes all = run(c, sequences_of_case(c), Tensor(c.type, values), Tensor(c.type, ones));
  for (const double d : download(all.b.d_qkv.data, c.type, all.rows() * all.row).doubles())
    ASSERT_TRUE(std::isfinite(d));
}
TEST_P(CudaAttentionTest, OneToken) { check({{1, 1}, 1, 1, 64, true}); }
TEST_P(CudaAttentionTest, ASequenceHasTheBitsThatItHasAlone) {
  check_alone({{1, 70, 64, 17}, 2, 1, 64, true, 0.25F});
}

constexpr DType kFp32 = DType::kFloat32;
TEST_P(CudaAttentionTest, Fp32Causal) { check({{37, 37}, 2, 2, 64, true, 0, kFp32}); }
TEST_P(CudaAttentionTest, Fp32CausalOfWideHeads) { check({{35, 35}, 1, 1, 128, true, 0, kFp32}); }
TEST_P(CudaAttentionTest, Fp32OtherHeads) {
  check({{21, 7}, 2, 1, 32, true, 0, kFp32});
  check({{21, 7}, 2, 1, 96, true, 0.25F, kFp32});
}
TEST_P(CudaAttentionTest, Fp32GroupedQueries) { check({{19, 19}, 4, 2, 64, true, 0, kFp32}); }
TEST_P(CudaAttentionTest, Fp32BidirectionalOfAnyLength) {
  check({{33, 3, 1}, 1, 1, 64, false, 0, kFp32});
}
TEST_P(CudaAttentionTest, Fp32BidirectionalOfWideHeadsInGroups) {
  check({{13, 13}, 2, 1, 128, false, 0, kFp32});
}
TEST_P(CudaAttentionTest, Fp32DropoutHasTheMaskOfTheCpu) {
  check({{27, 8}, 2, 1, 64, true, 0.25F, kFp32});
}
TEST_P(CudaAttentionTest, Windows) {
  for (const int64_t window : {1, 40, 64, 129})
    check({{150, 200}, 2, 1, 64, true, 0, DType::kBFloat16, window});
  check({{150}, 2, 1, 128, true, 0, DType::kBFloat16, 33});
  check({{150}, 1, 1, 64, true, 0.25F, DType::kBFloat16, 33});
  check({{90, 20}, 1, 1, 64, false, 0, DType::kBFloat16, 17});
}
TEST_P(CudaAttentionTest, Fp32Windows) {
  check({{33, 12}, 4, 2, 64, true, 0, kFp32, 7});
  check({{33}, 1, 1, 64, false, 0, kFp32, 7});
  check_alone({{1, 20, 7}, 2, 1, 64, true, 0.25F, kFp32, 5});
}
TEST_P(CudaAttentionTest, Fp32OneToken) { check({{1, 1}, 1, 1, 64, true, 0, kFp32}); }
TEST_P(CudaAttentionTest, Fp32SequenceHasTheBitsThatItHasAlone) {
  check_alone({{1, 20, 7}, 2, 1, 64, true, 0.25F, kFp32});
}

TEST_P(CudaAttentionTest, TakesMoreHeadsThanAGridIsHigh) {
  // Captured, not run.
  ASSERT_EQ(cudaSuccess, cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
  DeviceRows rows{.count = 4096 * 512, .sequences_count = 4096, .longest = 512};
  AttentionForward p{.heads = 20, .kv_heads = 20, .head_dim = 64};
  p.qkv.type = p.out.type = DType::kBFloat16;
  EXPECT_EQ(cudaSuccess, attention_forward(p, rows, stream_));
  AttentionBackward b{.heads = 20, .kv_heads = 20, .head_dim = 64};
  b.qkv.type = b.out.type = b.d_out.type = b.d_qkv.type = DType::kBFloat16;
  EXPECT_EQ(cudaSuccess, attention_backward(b, rows, nullptr, stream_));
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaSuccess, cudaStreamEndCapture(stream_, &graph));
  EXPECT_EQ(cudaSuccess, cudaGraphDestroy(graph));
  rows.sequences_count = int64_t{1} << 24;
  EXPECT_EQ(cudaErrorInvalidValue, attention_forward(p, rows, stream_));
}

TEST_P(CudaAttentionTest, RefusesOtherHeadDimensionsTypesGroupsAndKeyBlocks) {
  const DeviceRows rows{.count = 8, .sequences_count = 1, .longest = 8};
  AttentionForward p{.heads = 3, .kv_heads = 3, .head_dim = 48};
  EXPECT_EQ(cudaErrorInvalidValue, attention_forward(p, rows, stream_));
  p.head_dim = 64;
  p.qkv.type = p.out.type = DType::kInt64;
  EXPECT_EQ(cudaErrorInvalidValue, attention_forward(p, rows, stream_));
  p.qkv.type = DType::kFloat32;
  p.out.type = DType::kBFloat16;
  EXPECT_EQ(cudaErrorInvalidValue, attention_forward(p, rows, stream_));
  p.out.type = DType::kFloat32;
  p.kv_heads = 2;
  EXPECT_EQ(cudaErrorInvalidValue, attention_forward(p, rows, stream_));
  p.kv_heads = 3;
  const KeyBlock keys;
  p.keys = &keys;
  EXPECT_EQ(cudaErrorInvalidValue, attention_forward(p, rows, stream_));
  AttentionBackward b{.heads = 3, .kv_heads = 3, .head_dim = 160};
  EXPECT_EQ(cudaErrorInvalidValue, attention_backward(b, rows, nullptr, stream_));
  b.head_dim = 64;
  b.d_qkv.type = DType::kBFloat16;
  EXPECT_EQ(cudaErrorInvalidValue, attention_backward(b, rows, nullptr, stream_));
}

}  // namespace
}  // namespace trainyard::kernels::cuda::test

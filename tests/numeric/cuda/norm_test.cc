// LayerNorm and RMSNorm against references in double, and their sums over rows.

#include <utility>

#include "tests/numeric/cuda/support.h"

namespace trainyard::kernels::cuda::test {
namespace {

constexpr double kEpsilon = 1e-5F;
constexpr int kQuantum = 40;

class CudaNormTest : public CudaTest {
 protected:
  /// Rows with a mean that a careless variance would trip over.
  static std::vector<float> activations(int64_t count, uint32_t seed) {
    std::vector<float> x = normal(count, seed);
    for (float& v : x)
      v += 4.0F;
    return x;
  }
};
TRAINYARD_CUDA_TEST_SUITE(CudaNormTest);

struct Shape {
  DType type;
  int64_t rows, width;
};
const Shape kShapes[] = {{DType::kBFloat16, 5, 768},
                         {DType::kBFloat16, 3, 77},
                         {DType::kFloat32, 3, 200},
                         {DType::kFloat32, 2, 1},
                         {DType::kBFloat16, 2, 2056},
                         {DType::kFloat32, 2, 4101},
                         {DType::kFloat32, kColumnSumBlocks + 6, 264}};  // more rows than blocks

TEST_P(CudaNormTest, ForwardAddsResidualAndBias) {
  for (const Shape& s : kShapes) {
    const int64_t count = s.rows * s.width;
    const Tensor x(s.type, activations(count, 1));
    const Tensor residual(s.type, normal(count, 2));
    const std::vector<float> bias = normal(s.width, 3);
    const std::vector<float> gamma = normal(s.width, 4);
    const std::vector<float> beta = normal(s.width, 5);
    LayerNormForward p{.rows = s.rows, .width = s.width, .x = {upload(x), s.type}};
    const NormAddends add{
        {upload(residual), s.type}, upload(bias), {allocate(s.type, count), s.type}};
    p.gamma = upload(gamma);
    p.beta = upload(beta);
    p.y = {allocate(s.type, count), s.type};
    p.mean = allocate<float>(s.rows);
    p.rstd = allocate<float>(s.rows);
    ASSERT_EQ(cudaSuccess, layer_norm_forward(p, add, stream_));

    const Vector sum = x.doubles() + residual.doubles() + doubles(bias);
    const Vector rounded = download(add.sum.data, s.type, count).doubles();
    EXPECT_TRUE(near(rounded, sum, 1e-6, rounding_of(s.type) + 1e-6)) << s.width;
    const auto r =
        reference::layer_norm(s.rows, s.width, rounded, doubles(gamma), doubles(beta), kEpsilon);
    EXPECT_TRUE(near(doubles(download(p.mean, s.rows)), r.mean, 4e-6, 0)) << s.width;
    EXPECT_TRUE(near(doubles(download(p.rstd, s.rows)), r.rstd, 0, 1e-5)) << s.width;
    EXPECT_TRUE(
        near(download(p.y.data, s.type, count).doubles(), r.y, 2e-5, rounding_of(s.type) + 1e-5))
        << s.width;
  }
}

TEST_P(CudaNormTest, BackwardAddsTheResidualsGradient) {
  for (const Shape& s : kShapes) {
    const int64_t count = s.rows * s.width;
    const Tensor x(s.type, activations(count, 11));
    const Tensor dy(s.type, normal(count, 12));
    const Tensor d_residual(s.type, normal(count, 13));
    const std::vector<float> gamma = normal(s.width, 14);
    const std::vector<float> before = normal(s.width, 15);
    const auto forward = reference::layer_norm(s.rows, s.width, x.doubles(), doubles(gamma),
                                               Vector(static_cast<size_t>(s.width)), kEpsilon);
    LayerNormBackward p{.rows = s.rows, .width = s.width};
    p.dy = {upload(dy), s.type};
    p.x = {upload(x), s.type};
    p.dx = {upload(d_residual), s.type};
    p.d_residual = p.dx;
    p.gamma = upload(gamma);
    p.mean = upload(std::vector<float>(forward.mean.begin(), forward.mean.end()));
    p.rstd = upload(std::vector<float>(forward.rstd.begin(), forward.rstd.end()));
    p.d_gamma.sum = upload(before);
    p.d_beta.exact =
        upload(std::vector<int64_t>(static_cast<size_t>(s.width), int64_t{1} << kQuantum));
    p.d_bias.sum = upload(before);
    p.rounding = {.quantum_log2 = kQuantum, .overflow = upload(std::vector<uint32_t>{0})};
    p.scratch = allocate<float>(norm_scratch_floats(s.width));
    ASSERT_EQ(cudaSuccess, layer_norm_backward(p, stream_));

    const double of_sums = 1e-5 + 2e-7 * static_cast<double>(s.rows);
    auto r = reference::layer_norm_backward(s.rows, s.width, dy.doubles(), x.doubles(),
                                            doubles(gamma), kEpsilon);
    const Vector dx = download(p.dx.data, s.type, count).doubles();
    EXPECT_TRUE(near(dx, r.dx + d_residual.doubles(), 2e-5, rounding_of(s.type) + 1e-5)) << s.width;
    EXPECT_TRUE(
        near(doubles(download(p.d_gamma.sum, s.width)), r.dgamma + doubles(before), of_sums, 1e-5))
        << s.width;
    EXPECT_TRUE(near(doubles(download(p.d_beta.exact, s.width), kQuantum), r.dbeta + Vector{1},
                     of_sums, 1e-6))
        << s.width;
    EXPECT_TRUE(near(doubles(download(p.d_bias.sum, s.width)),
                     reference::column_sums(s.rows, s.width, dx) + doubles(before), of_sums, 1e-6))
        << s.width;
    EXPECT_EQ(0u, download(p.rounding.overflow, 1)[0]);
  }
}

TEST_P(CudaNormTest, RootMeanSquare) {
  for (const Shape& s : kShapes) {
    const int64_t count = s.rows * s.width;
    const Tensor x(s.type, activations(count, 21));
    const Tensor dy(s.type, normal(count, 22));
    const std::vector<float> gamma = normal(s.width, 23);
    const std::vector<float> zero(static_cast<size_t>(s.width), 0.0F);
    float* const gamma_on_device = upload(gamma);
    LayerNormForward f{.rows = s.rows, .width = s.width, .centred = false};
    f.x = {upload(x), s.type};
    f.gamma = gamma_on_device;
    f.y = {allocate(s.type, count), s.type};
    f.rstd = allocate<float>(s.rows);
    ASSERT_EQ(cudaSuccess, layer_norm_forward(f, {}, stream_));
    LayerNormBackward b{.rows = s.rows, .width = s.width, .centred = false};
    b.dy = {upload(dy), s.type};
    b.x = f.x;
    b.gamma = gamma_on_device;
    b.rstd = f.rstd;
    b.dx = {allocate(s.type, count), s.type};
    b.d_gamma.sum = upload(zero);
    b.scratch = allocate<float>(norm_scratch_floats(s.width));
    ASSERT_EQ(cudaSuccess, layer_norm_backward(b, stream_));

    const Vector y = reference::rms_norm(s.rows, s.width, x.doubles(), doubles(gamma), kEpsilon);
    EXPECT_TRUE(
        near(download(f.y.data, s.type, count).doubles(), y, 2e-5, rounding_of(s.type) + 1e-5));
    const auto r = reference::rms_norm_backward(s.rows, s.width, dy.doubles(), x.doubles(),
                                                doubles(gamma), kEpsilon);
    EXPECT_TRUE(
        near(download(b.dx.data, s.type, count).doubles(), r.dx, 2e-5, rounding_of(s.type) + 1e-5));
    EXPECT_TRUE(near(doubles(download(b.d_gamma.sum, s.width)), r.dgamma,
                     1e-5 + 2e-7 * static_cast<double>(s.rows), 1e-5));
  }
}

TEST_P(CudaNormTest, RefusesElementsOfTwoTypes) {
  float memory[8] = {};  // no kernel runs
  const Elements other(memory, DType::kBFloat16);
  LayerNormForward f{.rows = 1, .width = 8, .x = memory, .y = memory};
  EXPECT_EQ(cudaErrorInvalidValue, layer_norm_forward(f, {.residual = other}, stream_));
  EXPECT_EQ(cudaErrorInvalidValue, layer_norm_forward(f, {.sum = other}, stream_));
  f.y = other;
  EXPECT_EQ(cudaErrorInvalidValue, layer_norm_forward(f, {}, stream_));
  LayerNormBackward b{.rows = 1, .width = 8, .dy = other, .x = memory};
  EXPECT_EQ(cudaErrorInvalidValue, layer_norm_backward(b, stream_));
  b.dy = memory;
  b.d_residual = other;
  EXPECT_EQ(cudaErrorInvalidValue, layer_norm_backward(b, stream_));
  b.d_residual = {};
  b.dx = other;
  EXPECT_EQ(cudaErrorInvalidValue, layer_norm_backward(b, stream_));
}

TEST_P(CudaNormTest, ARowSumThatDoesNotFitRaisesTheFlag) {
  LayerNormBackward p{.rows = 2, .width = 8};
  std::vector<float> dy(16, 1.0F);
  dy[3] = 0x1p30F;  // times 2^40 is beyond 2^62
  p.dy = upload(dy);
  p.x = upload(normal(16, 1));
  p.gamma = upload(normal(8, 2));
  p.mean = upload(std::vector<float>{0, 0});
  p.rstd = upload(std::vector<float>{1, 1});
  p.dx = allocate<float>(16);
  p.d_beta.exact = upload(std::vector<int64_t>(8, 7));
  p.rounding = {.quantum_log2 = kQuantum, .overflow = upload(std::vector<uint32_t>{0})};
  p.scratch = allocate<float>(norm_scratch_floats(8));
  ASSERT_EQ(cudaSuccess, layer_norm_backward(p, stream_));
  EXPECT_EQ(1u, download(p.rounding.overflow, 1)[0]);
  EXPECT_EQ(7, download(p.d_beta.exact, 8)[3]) << "what does not fit adds nothing";
  EXPECT_EQ((int64_t{2} << kQuantum) + 7, download(p.d_beta.exact, 8)[4]);
}

TEST_P(CudaNormTest, RefusesWidthsThatNoBlockHolds) {
  EXPECT_EQ(cudaErrorInvalidValue, layer_norm_forward({.rows = 1, .width = 8193}, {}, stream_));
  EXPECT_EQ(cudaErrorInvalidValue, layer_norm_backward({.rows = 0, .width = 8}, stream_));
}

TEST_P(CudaNormTest, OfHeads) {
  constexpr int64_t kHeads = 5;
  constexpr int64_t kKeyHeads = 2;
  constexpr int64_t kNormed = kHeads + kKeyHeads;
  constexpr int64_t kAll = kNormed + kKeyHeads;
  for (const int64_t dim : {32, 64, 96, 128}) {
    for (const auto& [type, rows] : {std::pair(DType::kBFloat16, int64_t{5}),
                                     std::pair(DType::kFloat32, kColumnSumBlocks + 3)}) {
      if (dim != 64 && rows > 5) continue;
      const int64_t count = rows * kAll * dim;
      const Tensor x(type, activations(count, 31));
      const Tensor dy(type, normal(count, 32));
      const std::vector<float> gammas[2] = {normal(dim, 33), normal(dim, 34)};
      const float* const on_device[2] = {upload(gammas[0]), upload(gammas[1])};
      HeadNormForward f{.rows = rows, .heads = kHeads, .kv_heads = kKeyHeads, .head_dim = dim};
      f.epsilon = static_cast<float>(kEpsilon);
      f.x = {upload(x), type};
      f.query_gamma = on_device[0];
      f.key_gamma = on_device[1];
      f.y = {allocate(type, count), type};
      f.rstd = allocate<float>(rows * kNormed);
      ASSERT_EQ(cudaSuccess, head_norm_forward(f, stream_));
      HeadNormBackwardInput b{.rows = rows, .heads = kHeads, .kv_heads = kKeyHeads};
      b.head_dim = dim;
      b.dy = {upload(dy), type};
      b.x = f.x;
      b.query_gamma = on_device[0];
      b.key_gamma = on_device[1];
      b.rstd = f.rstd;
      b.dx = {allocate(type, count), type};
      ASSERT_EQ(cudaSuccess, head_norm_backward_input(b, stream_));
      HeadNormBackwardWeight w{.rows = rows, .heads = kHeads, .kv_heads = kKeyHeads};
      w.head_dim = dim;
      w.dy = b.dy;
      w.x = f.x;
      w.rstd = f.rstd;
      w.quantum_log2 = kQuantum;
      const std::vector<int64_t> one(static_cast<size_t>(dim), int64_t{1} << kQuantum);
      w.d_query_gamma = upload(one);
      w.d_key_gamma = upload(one);
      w.overflow = upload(std::vector<uint32_t>{0});
      float* const scratch = allocate<float>(head_norm_scratch_floats(dim));
      ASSERT_EQ(cudaSuccess, head_norm_backward_weight(w, scratch, stream_));
      HeadNormBackwardWeight fp32 = w;
      const std::vector<float> one_fp32(static_cast<size_t>(dim), 1.0F);
      fp32.d_query_gamma = upload(one_fp32);
      fp32.d_key_gamma = upload(one_fp32);
      ASSERT_EQ(cudaSuccess, head_norm_backward_weight(fp32, scratch, stream_));

      const Vector y = download(f.y.data, type, count).doubles();
      const Vector dx = download(b.dx.data, type, count).doubles();
      const Vector all_x = x.doubles();
      const Vector all_dy = dy.doubles();
      Vector expected_y = all_x;  // values are copied
      Vector expected_dx = all_dy;
      Vector sums[2] = {Vector(static_cast<size_t>(dim), 1.0),
                        Vector(static_cast<size_t>(dim), 1.0)};
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t head = 0; head < kNormed; ++head) {
          const int64_t at = (row * kAll + head) * dim;
          const size_t key = head < kHeads ? 0 : 1;
          const auto part = [&](const Vector& all) {
            return Vector(all.begin() + at, all.begin() + at + dim);
          };
          const Vector of_head = part(all_x);
          const Vector gamma = doubles(gammas[key]);
          const Vector normal_y = reference::rms_norm(1, dim, of_head, gamma, kEpsilon);
          const auto g =
              reference::rms_norm_backward(1, dim, part(all_dy), of_head, gamma, kEpsilon);
          std::copy(normal_y.begin(), normal_y.end(), expected_y.begin() + at);
          std::copy(g.dx.begin(), g.dx.end(), expected_dx.begin() + at);
          sums[key] = sums[key] + g.dgamma;
        }
      }
      EXPECT_TRUE(near(y, expected_y, 2e-5, rounding_of(type) + 1e-5)) << dim;
      EXPECT_TRUE(near(dx, expected_dx, 2e-5, rounding_of(type) + 1e-5)) << dim;
      const double of_sums = 1e-5 + 2e-7 * static_cast<double>(rows * kHeads);
      const auto of_query = download(w.d_query_gamma.exact, dim);
      const auto of_key = download(w.d_key_gamma.exact, dim);
      EXPECT_TRUE(near(doubles(of_query, kQuantum), sums[0], of_sums, 1e-5));
      EXPECT_TRUE(near(doubles(of_key, kQuantum), sums[1], of_sums, 1e-5));
      EXPECT_TRUE(near(doubles(download(fp32.d_query_gamma.sum, dim)), sums[0], of_sums, 1e-5));
      EXPECT_TRUE(near(doubles(download(fp32.d_key_gamma.sum, dim)), sums[1], of_sums, 1e-5));
      EXPECT_EQ(0u, download(w.overflow, 1)[0]);
      f.head_dim = 48;
      EXPECT_EQ(cudaErrorInvalidValue, head_norm_forward(f, stream_)) << "no kernel";
    }
  }
}

}  // namespace
}  // namespace trainyard::kernels::cuda::test

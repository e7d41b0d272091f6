// AdamW to the CPU's bits; norms, casts and exact sums.

#include "tests/numeric/cuda/support.h"

namespace trainyard::kernels::cuda::test {
namespace {

class CudaOptimizerTest : public CudaTest {};
TRAINYARD_CUDA_TEST_SUITE(CudaOptimizerTest);

struct HostTensor {
  std::vector<float> gradient, parameter, m, v;
  std::vector<int64_t> exact;
  float weight_decay;
};

TEST_P(CudaOptimizerTest, AdamWHasTheBitsOfTheCpu) {
  constexpr double kScale = 0x1p-30;
  std::vector<HostTensor> host;
  std::vector<AdamWTensor> tensors;
  for (const int64_t count : {1, 8, 4096, 4099, 77, 9000}) {
    const auto seed = static_cast<uint32_t>(count);
    HostTensor t{normal(count, seed),
                 normal(count, seed + 1),
                 normal(count, seed + 2, 0.1F),
                 normal(count, seed + 3, 0.1F),
                 {},
                 count % 2 == 0 ? 0.1F : 0.0F};
    for (float& x : t.v)
      x *= x;
    if (count == 77) {  // one whose gradient is an exact sum
      for (float& x : t.gradient) {
        t.exact.push_back(std::llrint(std::ldexp(static_cast<double>(x), 30)));
        x = static_cast<float>(static_cast<double>(t.exact.back()) * kScale);
      }
    }
    AdamWTensor d{.count = count, .weight_decay = t.weight_decay};
    d.gradient = t.exact.empty() ? upload(t.gradient) : nullptr;
    d.exact = t.exact.empty() ? nullptr : upload(t.exact);
    d.parameter = upload(t.parameter);
    d.m = upload(t.m);
    d.v = upload(t.v);
    d.bf16_copy = count == 1 ? nullptr : allocate<uint16_t>(count);
    tensors.push_back(d);
    host.push_back(t);
  }
  OptimizerScalars scalars{.gradient_norm = 1,
                           .clip_scale = 0.7F,
                           .learning_rate = 0.01F,
                           .bias_correction1 = 1.5F,
                           .bias_correction2 = 2.5F,
                           .skip = 0};
  AdamWStep p;
  p.tensors_count = static_cast<int64_t>(tensors.size());
  p.blocks = adamw_blocks(tensors.data(), p.tensors_count);
  p.tensors = upload(tensors);
  p.exact_scale = kScale;
  p.scalars = upload(std::vector<OptimizerScalars>{scalars});
  ASSERT_EQ(cudaSuccess, adamw(p, stream_));

  kernels::test::Kernels cpu(Isa::kGeneric, 1);
  for (size_t i = 0; i < host.size(); ++i) {
    HostTensor& t = host[i];
    const int64_t count = tensors[i].count;
    std::vector<uint16_t> copy(t.parameter.size());
    kernels::AdamW step{.count = count};
    step.weight_decay = t.weight_decay;
    step.gradient = t.gradient.data();
    step.parameter = t.parameter.data();
    step.m = t.m.data();
    step.v = t.v.data();
    step.bf16_copy = copy.data();
    step.scalars = &scalars;
    cpu->adamw(step);
    EXPECT_EQ(t.parameter, download(tensors[i].parameter, count)) << count;
    EXPECT_EQ(t.m, download(tensors[i].m, count)) << count;
    EXPECT_EQ(t.v, download(tensors[i].v, count)) << count;
    if (tensors[i].bf16_copy != nullptr) {
      EXPECT_EQ(copy, download(tensors[i].bf16_copy, count)) << count;
    }
  }
  // A skipped step leaves everything.
  scalars.skip = 1;
  p.scalars = upload(std::vector<OptimizerScalars>{scalars});
  ASSERT_EQ(cudaSuccess, adamw(p, stream_));
  EXPECT_EQ(host[3].parameter, download(tensors[3].parameter, tensors[3].count));
}

TEST_P(CudaOptimizerTest, SumOfSquaresPerBlock) {
  const int64_t count = kNormBlockElements + 1001;
  const std::vector<float> x = normal(count, 1);
  double* const sums = allocate<double>(2);
  ASSERT_EQ(cudaSuccess, sum_of_squares(upload(x), count, sums, stream_));
  Vector expected(2);
  for (size_t i = 0; i < x.size(); ++i) {
    expected[static_cast<int64_t>(i) < kNormBlockElements ? 0 : 1] +=
        static_cast<double>(x[i]) * static_cast<double>(x[i]);
  }
  EXPECT_TRUE(near(download(sums, 2), expected, 0, 1e-12));
}

TEST_P(CudaOptimizerTest, ExactSumsRoundToNearestEvenAndBack) {
  const std::vector<float> partial = {1.5F,     2.5F,    -0.5F,         -1.5F,    0x1p40F,
                                      -0x1p61F, 0x1p62F, std::nanf(""), -INFINITY};
  const std::vector<int64_t> expected = {2, 2, 0, -2, int64_t{1} << 40, 0, 0, 0, 0};
  const auto count = static_cast<int64_t>(partial.size());
  for (const bool fits : {true, false}) {
    int64_t* const exact = upload(std::vector<int64_t>(partial.size(), 100));
    uint32_t* const overflow = upload(std::vector<uint32_t>{0});
    // Two partials: each stays below 2^61.
    ASSERT_EQ(cudaSuccess, add_exact(upload(partial), exact, fits ? 5 : count,
                                     {.partials = 2, .overflow = overflow}, stream_));
    EXPECT_EQ(fits ? 0u : 1u, download(overflow, 1)[0]);
    const std::vector<int64_t> sums = download(exact, count);
    for (size_t i = 0; i < (fits ? 5 : partial.size()); ++i)
      EXPECT_EQ(expected[i] + 100, sums[i]) << i;
    float* const gradient = allocate<float>(count);
    ASSERT_EQ(cudaSuccess,
              exact_to_float({.count = count, .acc = exact, .scale = 0.25, .gradient = gradient},
                             stream_));
    EXPECT_EQ(25.5F, download(gradient, count)[1]);
  }
}

TEST_P(CudaOptimizerTest, CastsAndFill) {
  for (const int64_t count : {1, 8, 2051}) {
    const std::vector<float> x = normal(count, 3);
    const Tensor expected(DType::kBFloat16, x);
    void* const bf16 = allocate(DType::kBFloat16, count);
    void* const back = allocate(DType::kFloat32, count);
    ASSERT_EQ(cudaSuccess,
              cast(upload(x), DType::kFloat32, bf16, DType::kBFloat16, count, stream_));
    ASSERT_EQ(cudaSuccess, cast(bf16, DType::kBFloat16, back, DType::kFloat32, count, stream_));
    EXPECT_EQ(expected.bf16, download(bf16, DType::kBFloat16, count).bf16);
    EXPECT_EQ(expected.doubles(), download(back, DType::kFloat32, count).doubles());
    ASSERT_EQ(cudaSuccess, fill(back, DType::kFloat32, 2.5F, count, stream_));
    EXPECT_EQ(Vector(static_cast<size_t>(count), 2.5),
              download(back, DType::kFloat32, count).doubles());
  }
  EXPECT_EQ(cudaErrorInvalidValue, fill(nullptr, DType::kInt32, 0, 8, stream_));
}

}  // namespace
}  // namespace trainyard::kernels::cuda::test

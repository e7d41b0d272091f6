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
  const auto beta1_of = [](size_t tensor) { return 0.9F - 0.01F * static_cast<float>(tensor); };
  std::vector<HostTensor> host;
  std::vector<AdamW> tensors;
  // Of more tensors than one launch has.
  std::vector<int64_t> counts = {1, 8, 4093, 4096, 4099, 77, 9000};
  counts.insert(counts.end(), {5, 9001, 4097, 3, 12, 8193, 77, 1, 4099, 6, 5, 2});
  for (const int64_t count : counts) {
    const auto seed = static_cast<uint32_t>(1000 * host.size() + count);
    HostTensor t{normal(count, seed),
                 normal(count, seed + 1),
                 normal(count, seed + 2, 0.1F),
                 normal(count, seed + 3, 0.1F),
                 {},
                 count % 2 == 0 ? 0.1F : 0.0F};
    for (float& x : t.v)
      x *= x;
    for (float& x : t.gradient) {
      t.exact.push_back(std::llrint(std::ldexp(static_cast<double>(x), 30)));
      x = static_cast<float>(static_cast<double>(t.exact.back()) * kScale);
    }
    AdamW d{.count = count, .weight_decay = t.weight_decay};
    d.beta1 = beta1_of(host.size());
    if (count == 77) {
      d.gradient = {.sums = upload(t.exact), .scale = kScale};
    } else {
      d.gradient = {.rounded = upload(t.gradient)};
    }
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
  OptimizerScalars* const on_device = upload(std::vector<OptimizerScalars>{scalars});
  for (AdamW& tensor : tensors)
    tensor.scalars = on_device;
  ASSERT_EQ(cudaSuccess, adamw(tensors, stream_));

  kernels::test::Kernels cpu(Isa::kGeneric, 1);
  for (size_t i = 0; i < host.size(); ++i) {
    HostTensor& t = host[i];
    const int64_t count = tensors[i].count;
    std::vector<uint16_t> copy(t.parameter.size());
    kernels::AdamW step{.count = count};
    step.weight_decay = t.weight_decay;
    step.beta1 = beta1_of(i);
    step.gradient = {.sums = t.exact.data(), .scale = kScale};
    step.parameter = t.parameter.data();
    step.m = t.m.data();
    step.v = t.v.data();
    step.bf16_copy = copy.data();
    step.scalars = &scalars;
    cpu->adamw({&step, 1});
    EXPECT_EQ(t.parameter, download(tensors[i].parameter, count)) << count;
    EXPECT_EQ(t.m, download(tensors[i].m, count)) << count;
    EXPECT_EQ(t.v, download(tensors[i].v, count)) << count;
    if (tensors[i].bf16_copy != nullptr) {
      EXPECT_EQ(copy, download(tensors[i].bf16_copy, count)) << count;
    }
  }
  AdamW none = tensors.back();
  none.count = 0;
  EXPECT_EQ(cudaErrorInvalidValue, adamw(std::vector{tensors[0], none}, stream_));
  // A skipped step leaves everything.
  scalars.skip = 1;
  for (AdamW& tensor : tensors)
    tensor.scalars = upload(std::vector<OptimizerScalars>{scalars});
  ASSERT_EQ(cudaSuccess, adamw(tensors, stream_));
  EXPECT_EQ(host[3].parameter, download(tensors[3].parameter, tensors[3].count));
}

/// Carried, so that equal sums have equal limbs.
std::vector<int64_t> carried(std::vector<int64_t> limbs) {
  for (size_t k = 0; k + 1 < limbs.size(); ++k) {
    limbs[k + 1] += limbs[k] >> kSquareLimbBits;
    limbs[k] &= (int64_t{1} << kSquareLimbBits) - 1;
  }
  return limbs;
}

TEST_P(CudaOptimizerTest, TheSumOfSquaresHasTheBitsOfTheCpu) {
  constexpr double kScale = 0x1p-40;
  const int64_t count = 64 * 1024 + 1001;
  std::vector<float> x = normal(count, 1);
  x[5] = 0x1p-20F;
  x[count - 1] = 16'000;
  std::vector<int64_t> exact;
  for (float& value : x) {
    exact.push_back(std::llrint(std::ldexp(static_cast<double>(value), 40)));
    value = static_cast<float>(static_cast<double>(exact.back()) * kScale);
  }
  std::vector<int64_t> expected(kSquareLimbs);
  kernels::test::Kernels cpu(Isa::kGeneric, 1);
  cpu->sum_of_squares(
      {.count = count, .gradient = {exact.data(), kScale}, .limbs = expected.data()});
  for (const bool is_exact : {false, true}) {
    int64_t* const limbs = upload(std::vector<int64_t>(kSquareLimbs));
    uint32_t* const overflow = upload(std::vector<uint32_t>{0});
    SumOfSquares p{.count = count, .limbs = limbs, .overflow = overflow};
    float* const rounded = upload(std::vector<float>(x.size() + 1, -1.0F));
    if (is_exact) {
      p.gradient = {.sums = upload(exact), .scale = kScale};
      p.rounded = rounded;
    } else {
      std::vector<float> large = x;  // as a sum over many tokens is
      for (float& value : large)
        value *= 1024;
      p.gradient.rounded = upload(large);
      p.rounded_scale = 0x1p-10F;
    }
    ASSERT_EQ(cudaSuccess, sum_of_squares(p, stream_));
    p.limbs = nullptr;  // another rank counts them
    ASSERT_EQ(cudaSuccess, sum_of_squares(p, stream_));
    EXPECT_EQ(carried(expected), carried(download(limbs, kSquareLimbs)));
    EXPECT_EQ(0U, download(overflow, 1)[0]);
    std::vector<float> left = download(rounded, count + 1);
    EXPECT_EQ(-1.0F, left.back());
    left.pop_back();
    if (is_exact) {
      EXPECT_EQ(x, left);
    }
  }
}

TEST_P(CudaOptimizerTest, ASquareThatDoesNotFitIsAnOverflowAndAddsNothing) {
  for (const float bad : {0x1p14F, std::nanf(""), -INFINITY}) {
    int64_t* const limbs = upload(std::vector<int64_t>(kSquareLimbs));
    uint32_t* const overflow = upload(std::vector<uint32_t>{0});
    ASSERT_EQ(cudaSuccess,
              sum_of_squares({.count = 3,
                              .gradient = {.rounded = upload(std::vector<float>{0, bad, 0})},
                              .limbs = limbs,
                              .overflow = overflow},
                             stream_));
    EXPECT_EQ(std::vector<int64_t>(kSquareLimbs), download(limbs, kSquareLimbs));
    EXPECT_EQ(1U, download(overflow, 1)[0]);
  }
}

// Of many parts, each of which fits.
TEST_P(CudaOptimizerTest, ASumThatDoesNotFitIsAnOverflow) {
  std::vector<int64_t> sums(kSquareLimbs);
  for (const int64_t so_far : {int64_t{0}, kSquareLimit - 1}) {
    sums.back() = so_far;
    uint32_t* const overflow = upload(std::vector<uint32_t>{0});
    // A square of the top limb's own size.
    ASSERT_EQ(cudaSuccess,
              sum_of_squares({.count = 1,
                              .gradient = {.rounded = upload(std::vector<float>{0x1p13F})},
                              .limbs = upload(sums),
                              .overflow = overflow},
                             stream_));
    EXPECT_EQ(so_far == 0 ? 0U : 1U, download(overflow, 1)[0]);
  }
}

TEST_P(CudaOptimizerTest, ExactSumsRoundToNearestEven) {
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
  }
}

TEST_P(CudaOptimizerTest, ExactSumsAreSquaredAsTheyAreAdded) {
  constexpr double kScale = 0x1p-40;
  for (const int64_t count : {1, 2051, 3 * 8192, 2 * 8192 + 777}) {
    std::vector<float> partial = normal(count, static_cast<uint32_t>(count));
    partial.back() = 0x1p-38F;  // of it the lowest limb has most
    const std::vector<int64_t> before(partial.size(), (int64_t{3} << 40) + 5);
    for (const bool overwrite : {false, true}) {
      const ExactRounding rounding{.quantum_log2 = 40, .partials = 2};
      int64_t* const apart = upload(before);
      ASSERT_EQ(cudaSuccess,
                add_exact(upload(partial), apart, count, rounding, stream_, overwrite));
      const std::vector<int64_t> sums = download(apart, count);
      std::vector<int64_t> expected(kSquareLimbs, 7);
      kernels::test::Kernels cpu(Isa::kGeneric, 1);
      cpu->sum_of_squares(
          {.count = count, .gradient = {sums.data(), kScale}, .limbs = expected.data()});

      int64_t* const exact = upload(before);
      int64_t* const limbs = upload(std::vector<int64_t>(kSquareLimbs, 7));
      uint32_t* const overflow = upload(std::vector<uint32_t>{0});
      ASSERT_EQ(cudaSuccess, add_exact(upload(partial), exact, count, rounding, stream_, overwrite,
                                       {kScale, limbs, overflow}));
      EXPECT_EQ(sums, download(exact, count)) << count;
      EXPECT_EQ(carried(expected), carried(download(limbs, kSquareLimbs))) << count;
      EXPECT_EQ(0U, download(overflow, 1)[0]);
    }
  }
}

// A partial that does not fit adds nothing, and the square is that of the sum before it; a sum that
// is too large adds no square.
TEST_P(CudaOptimizerTest, WhatDoesNotFitIsNotSquared) {
  const std::vector<float> partial = {0x1p62F, 0.0F, 1.0F};
  const std::vector<int64_t> before = {int64_t{2} << 40, int64_t{1} << 54, int64_t{2} << 40};
  for (const bool too_large : {false, true}) {
    int64_t* const exact = upload(before);
    int64_t* const limbs = upload(std::vector<int64_t>(kSquareLimbs));
    uint32_t* const partials = upload(std::vector<uint32_t>{0});
    uint32_t* const squares = upload(std::vector<uint32_t>{0});
    ASSERT_EQ(cudaSuccess, add_exact(upload(partial), exact, too_large ? 3 : 1,
                                     {.partials = 2, .overflow = partials}, stream_, false,
                                     {0x1p-40, limbs, squares}));
    EXPECT_EQ(1U, download(partials, 1)[0]);
    EXPECT_EQ(too_large ? 1U : 0U, download(squares, 1)[0]);
    std::vector<int64_t> expected(kSquareLimbs);
    expected.back() = (too_large ? 8 : 4) << 16;  // 2^2 in quanta of 2^-16, of one or two sums
    const std::vector<int64_t> found = carried(download(limbs, kSquareLimbs));
    EXPECT_EQ(expected.back(), found.back());
    EXPECT_EQ(before[0], download(exact, 3)[0]);
  }
}

TEST_P(CudaOptimizerTest, SumsAreAddedToTheBit) {
  for (const int64_t count : {1, 255, 257, 2051}) {
    const std::vector<float> x = normal(count + 1, static_cast<uint32_t>(count));
    std::vector<float> sums = normal(count + 1, 5, 0x1p12F);  // the last is none of them
    std::vector<int64_t> x_exact;
    std::vector<int64_t> exact;
    for (size_t i = 0; i < x.size(); ++i) {
      x_exact.push_back(std::llrint(static_cast<double>(x[i]) * 0x1p40) * 3 + 1);
      exact.push_back(std::llrint(static_cast<double>(sums[i]) * 0x1p40) * 5 - 1);
    }
    float* const on_device = upload(sums);
    int64_t* const exact_on_device = upload(exact);
    ASSERT_EQ(cudaSuccess, add_sums(upload(x), on_device, count, stream_));
    ASSERT_EQ(cudaSuccess, add_sums(upload(x_exact), exact_on_device, count, stream_));
    for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
      sums[i] += x[i];
      exact[i] += x_exact[i];
    }
    EXPECT_EQ(sums, download(on_device, count + 1)) << count;
    EXPECT_EQ(exact, download(exact_on_device, count + 1)) << count;
    EXPECT_EQ(cudaErrorInvalidValue, add_sums(upload(x), exact_on_device, count, stream_));
    EXPECT_EQ(cudaErrorInvalidValue, add_sums(upload(x_exact), on_device, count, stream_));
    EXPECT_EQ(cudaErrorInvalidValue, add_sums({}, on_device, count, stream_));
  }
}

TEST_P(CudaOptimizerTest, CastsAndFill) {
  for (const int64_t count : {1, 8, 2051}) {
    const std::vector<float> x = normal(count, 3);
    const Tensor expected(DType::kBFloat16, x);
    const Elements bf16(allocate(DType::kBFloat16, count), DType::kBFloat16);
    void* const back = allocate(DType::kFloat32, count);
    ASSERT_EQ(cudaSuccess, cast(upload(x), bf16, count, stream_));
    ASSERT_EQ(cudaSuccess, cast(bf16, {back, DType::kFloat32}, count, stream_));
    EXPECT_EQ(expected.bf16, download(bf16.data, DType::kBFloat16, count).bf16);
    EXPECT_EQ(expected.doubles(), download(back, DType::kFloat32, count).doubles());
    ASSERT_EQ(cudaSuccess, fill({back, DType::kFloat32}, 2.5F, count, stream_));
    EXPECT_EQ(Vector(static_cast<size_t>(count), 2.5),
              download(back, DType::kFloat32, count).doubles());
  }
  EXPECT_EQ(cudaErrorInvalidValue, fill({nullptr, DType::kInt32}, 0, 8, stream_));
}

}  // namespace
}  // namespace trainyard::kernels::cuda::test

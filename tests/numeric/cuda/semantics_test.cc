// What the emulation says of warps, barriers, tensor cores and background copies: is it what a
// device does?

#include "tests/numeric/cuda/support.h"
#include "tests/unit/kernels/simt_kernels.h"

namespace trainyard::kernels::cuda::test {
namespace {

constexpr int64_t kCount = 64;

class CudaSemanticsTest : public CudaTest {
 protected:
  /// in = 0, 1, 2, ...; out = 0.
  std::vector<float> run(simt::test::Launch launch) {
    std::vector<float> in(kCount);
    for (size_t i = 0; i < in.size(); ++i)
      in[i] = static_cast<float>(i);
    const simt::test::Arguments a{upload(in), upload(std::vector<float>(kCount, 0.0F))};
    EXPECT_EQ(cudaSuccess, launch(a, stream_));
    return download(a.out, kCount);
  }
};
TRAINYARD_CUDA_TEST_SUITE(CudaSemanticsTest);

TEST_P(CudaSemanticsTest, BarriersShufflesAndCopies) {
  const std::vector<float> reversed = run(simt::test::reverse);
  const std::vector<float> sums = run(simt::test::warp_sums);
  const std::vector<float> copied = run(simt::test::background_copy);
  for (size_t i = 0; i < kCount; ++i) {
    EXPECT_EQ(static_cast<float>(kCount - 1 - i), reversed[i]);
    EXPECT_EQ(i < 32 ? 496.0F : 1520.0F, sums[i]);
    EXPECT_EQ(static_cast<float>(i), copied[i]);
  }
  EXPECT_EQ(copied, run(simt::test::wide_stores));
  EXPECT_EQ(2016.0F, run(simt::test::atomic_sum)[0]);
}

TEST_P(CudaSemanticsTest, FragmentsOfTensorCores) {
  const std::vector<float> product = run(simt::test::matrix_product);
  for (size_t i = 0; i < 8; ++i) {
    for (size_t j = 0; j < 8; ++j) {
      float expected = 0;
      for (size_t k = 0; k < 8; ++k)
        expected += static_cast<float>((i * 8 + k) * (j * 8 + k));
      EXPECT_EQ(expected, product[i * 8 + j]) << i << " " << j;
    }
  }
}

/// "Not ready" is an answer, not an error that a thread keeps.
TEST_P(CudaSemanticsTest, ALaunchAfterAPollReportsItsOwnStatus) {
  constexpr int64_t kMany = int64_t{1} << 16U;
  auto* const x = allocate<float>(kMany);
  for (int i = 0; i < 32; ++i)
    ASSERT_EQ(cudaSuccess, fill(x, 1, kMany, stream_));
  const cudaError_t poll = cudaStreamQuery(stream_);
  EXPECT_TRUE(poll == cudaSuccess || poll == cudaErrorNotReady);
  EXPECT_EQ(cudaSuccess, fill(x, 2, kMany, stream_));
  EXPECT_EQ(cudaSuccess, cudaStreamSynchronize(stream_));
  const cudaError_t last = cudaGetLastError();  // the poll's, for who asks
  EXPECT_TRUE(last == cudaSuccess || last == poll);
}

// Apart from the others: a device need not have the emulation's bits.
class CudaApproximationTest : public CudaSemanticsTest {};
TRAINYARD_CUDA_TEST_SUITE(CudaApproximationTest);

TEST_P(CudaApproximationTest, StaysWithinItsError) {
  const std::vector<float> results = run(simt::test::approximations);
  for (int i = 0; i < kCount; ++i) {
    const double exact = i < 32 ? std::exp2(i - 32.0) : 1.0 / (i - 48.0);
    const auto actual = static_cast<double>(results[static_cast<size_t>(i)]);
    if (i == 48) {
      EXPECT_EQ(INFINITY, actual);
    } else {
      EXPECT_LE(std::fabs(actual / exact - 1), (i < 32 ? 0x1p-22 : 0x1p-23) + 0x1p-24) << i;
    }
  }
}

}  // namespace
}  // namespace trainyard::kernels::cuda::test

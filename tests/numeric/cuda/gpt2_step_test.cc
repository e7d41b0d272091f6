// The kernels chained to a training step of GPT-2: a small model learns its one batch.

#include "tests/gpu/gpt2_step.h"

#include "tests/numeric/cuda/support.h"
#include "tests/support/fake_cublaslt.h"

namespace trainyard::kernels::cuda::test {
namespace {

class CudaGpt2StepTest : public CudaTest {};
TRAINYARD_CUDA_TEST_SUITE(CudaGpt2StepTest);

TEST_P(CudaGpt2StepTest, LearnsItsBatchWithTheSameBitsEachTime) {
  testing_support::fake_cublaslt() = {};
  testing_support::fake_cublaslt().split_k = {1};
  const Gpt2Shape shape{.layers = 2,
                        .width = 64,
                        .heads = 1,
                        .vocab = 48,
                        .sequence = 16,
                        .samples = 1,
                        .classifier_chunks = 2};
  std::vector<double> losses[2];
  for (std::vector<double>& of_run : losses) {
    auto gemm = Gemm::create(testing_support::fake_cublaslt_api(), {.workspace_bytes = 4096});
    ASSERT_TRUE(gemm);
    Gpt2Step step(shape, **gemm, 4096, stream_);
    step.run(false);  // measures plans, which spoils its gradients
    for (int i = 0; i < 4; ++i) {
      step.run(true);
      of_run.push_back(step.loss());
    }
  }
  EXPECT_EQ(losses[0], losses[1]);
  EXPECT_NEAR(std::log(48.0), losses[0][0], 0.4);
  EXPECT_LT(losses[0][3], losses[0][0] - 0.3);
  EXPECT_EQ("", testing_support::fake_cublaslt().complaint);
}

}  // namespace
}  // namespace trainyard::kernels::cuda::test

// The kernels chained to a training step of GPT-2: a small model learns its one batch.

#include "tests/gpu/gpt2_step.h"

#include "tests/numeric/cuda/support.h"
#include "tests/support/fake_cublaslt.h"

namespace trainyard::kernels::cuda::test {
namespace {

class CudaGpt2StepTest : public CudaTest {};
TRAINYARD_CUDA_TEST_SUITE(CudaGpt2StepTest);

Gpt2Shape small(int64_t micro_batches) {
  return {.layers = 1,
          .width = 64,
          .heads = 1,
          .vocab = 48,
          .sequence = 16,
          .samples = 1,
          .micro_batches = micro_batches,
          .classifier_chunks = 2,
          .learning_rate = 1e-2F};
}
constexpr size_t kWorkspaceBytes = 4096;
std::unique_ptr<Gemm> gemm(bool split_k) {
  auto made = Gemm::create(testing_support::fake_cublaslt_api(),
                           {.workspace_bytes = kWorkspaceBytes, .split_k = split_k});
  return *std::move(made);
}
Attention own_attention() {
  return {[] {
            return Result<std::unique_ptr<AttentionLibrary>>(
                Error{ErrorCode::kUnavailable, "none here"});
          },
          [](const std::string&) {}};
}

TEST_P(CudaGpt2StepTest, LearnsItsBatchWithTheSameBitsEachTime) {
  for (const bool canonical : {false, true}) {
    std::vector<double> losses[2];
    for (std::vector<double>& of_run : losses) {
      testing_support::fake_cublaslt() = {};
      testing_support::fake_cublaslt().split_k = {1};
      const std::unique_ptr<Gemm> products = gemm(false);
      Attention attention = own_attention();
      Gpt2Step step(small(1), canonical, *products, attention, kWorkspaceBytes, stream_);
      step.passes();  // measures plans, which spoils its gradients
      for (int i = 0; i < 3; ++i) {
        step.passes();
        of_run.push_back(step.loss());
        step.update();
        EXPECT_GT(step.gradient_norm(), 0.1);
      }
    }
    EXPECT_EQ(losses[0], losses[1]);
    EXPECT_NEAR(std::log(48.0), losses[0][0], 0.4);
    EXPECT_LT(losses[0][2], losses[0][0] - 0.3);
    EXPECT_EQ("", testing_support::fake_cublaslt().complaint);
  }
}

TEST_P(CudaGpt2StepTest, ExactSumsDoNotDependOnTheOrderOfMicroBatches) {
  for (const bool canonical : {false, true}) {
    testing_support::fake_cublaslt() = {};
    testing_support::fake_cublaslt().split_k = {1};
    const std::unique_ptr<Gemm> products = gemm(false);
    Attention attention = own_attention();
    Gpt2Step step(small(2), canonical, *products, attention, kWorkspaceBytes, stream_);
    step.passes();
    step.passes();
    const uint64_t ascending = step.gradient_hash();
    step.passes(true);
    EXPECT_EQ(canonical, ascending == step.gradient_hash());
  }
}

TEST_P(CudaGpt2StepTest, ProductsSquareWhatTheyAddUpOnce) {
  for (const int64_t micro_batches : {1, 2}) {
    testing_support::fake_cublaslt() = {};
    testing_support::fake_cublaslt().split_k = {1};
    const std::unique_ptr<Gemm> products = gemm(false);
    Attention attention = own_attention();
    Gpt2Step step(small(micro_batches), true, *products, attention, kWorkspaceBytes, stream_);
    step.passes();
    step.passes();
    const auto [found, expected] = step.squares();
    EXPECT_EQ(expected, found) << micro_batches;
    EXPECT_NE(Gpt2Step::SquareLimbs(), found);
  }
}

}  // namespace
}  // namespace trainyard::kernels::cuda::test

#include <algorithm>
#include <cmath>
#include <memory>
#include <new>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cpu/cpu_kernel_set.h"
#include "worker/model/ops/embedding.h"
#include "worker/model/ops/residual_dropout.h"

namespace trainyard::engine {
namespace {

constexpr int64_t kWidth = 24;
constexpr int64_t kTokens = 17;
constexpr float kRate = 0.25F;
constexpr uint64_t kOp = 5;

/// Dropout is linear: with ones for what goes in, forward and backward both show the mask itself.
class DropoutMaskTest : public ::testing::Test {
 protected:
  DropoutMaskTest() : kernels_(*kernels::make_cpu_kernel_set(kernels::best_isa(), 1)) {
    std::iota(tokens_.begin(), tokens_.end(), 0);
    const auto bytes = static_cast<size_t>(kernels_->scratch_bytes());
    scratch_.reset(static_cast<std::byte*>(::operator new (bytes, std::align_val_t{64})));
    kernels_->set_scratch({scratch_.get(), bytes});
    batch_ = {.rows = {.count = kTokens, .sequences = sequences_}, .tokens = tokens_};
    numerics_ = {.seed = 11, .overflow = &overflow_};
  }

  OpArgs args() { return {.kernels = kernels_.get(), .batch = &batch_, .numerics = &numerics_}; }

  static TensorView view(std::vector<float>& values) { return {{values.data()}, kTokens, kWidth}; }

  static void expect_a_mask(const std::vector<float>& mask) {
    const auto dropped = std::count(mask.begin(), mask.end(), 0.0F);
    EXPECT_GT(dropped, 0);
    EXPECT_LT(dropped, std::ssize(mask) / 2);
    EXPECT_EQ(std::count(mask.begin(), mask.end(), 1 / (1 - kRate)), std::ssize(mask) - dropped);
  }

  struct Free {
    void operator()(std::byte* p) const { ::operator delete (p, std::align_val_t{64}); }
  };
  std::unique_ptr<kernels::KernelSet> kernels_;
  std::unique_ptr<std::byte, Free> scratch_;
  std::vector<int32_t> tokens_ = std::vector<int32_t>(kTokens);
  std::vector<kernels::Sequence> sequences_ = {{.length = kTokens, .ordinal = 7}};
  kernels::OverflowFlag overflow_{0};
  data::MicroBatch batch_;
  StepNumerics numerics_;
};

TEST_F(DropoutMaskTest, ABranchGetsItsGradientThroughTheMaskOfItsForward) {
  const ResidualDropout op(kWidth, kRate, kOp);
  std::vector<float> ones(kWidth * kTokens, 1.0F);
  std::vector<float> residual(ones.size(), 0.0F);
  std::vector<float> forward(ones.size(), -1.0F);
  std::vector<float> backward(ones.size(), -1.0F);
  const TensorView in[] = {view(ones), view(residual)};
  const TensorView out[] = {view(forward)};
  const TensorView d_in[] = {view(backward)};
  const TensorView d_out[] = {view(ones)};
  OpArgs a = args();
  a.in = in;
  a.out = out;
  op.forward(a);
  expect_a_mask(forward);
  a.d_in = d_in;
  a.d_out = d_out;
  op.backward_input(a);
  EXPECT_EQ(backward, forward);
}

TEST_F(DropoutMaskTest, TheEmbeddingGetsItsGradientThroughTheMaskOfItsForward) {
  const Embedding op(kWidth, kRate, kOp, kTokens);
  std::vector<float> wte(kWidth * kTokens, 1.0F);  // each token occurs once
  std::vector<float> wpe(wte.size(), 0.0F);
  std::vector<float> forward(wte.size(), -1.0F);
  std::vector<float> ones(wte.size(), 1.0F);
  std::vector<int64_t> d_wte(wte.size(), 0);
  std::vector<int64_t> d_wpe(wte.size(), 0);
  const ParamView params[] = {{.value = wte.data(), .gradient = {.sums = d_wte.data()}},
                              {.value = wpe.data(), .gradient = {.sums = d_wpe.data()}}};
  const TensorView out[] = {view(forward)};
  const TensorView d_out[] = {view(ones)};
  std::vector<std::byte> scratch(static_cast<size_t>(
      op.scratch_bytes({.rows = kTokens, .tokens_per_sample = kTokens}, OpPass::kBackwardWeight)));
  OpArgs a = args();
  a.params = params;
  a.out = out;
  a.d_out = d_out;
  a.scratch = scratch.data();
  op.forward(a);
  expect_a_mask(forward);
  op.backward_weight(a);
  const double quantum = std::ldexp(1.0, -numerics_.gradient_quantum_log2);
  for (size_t i = 0; i < forward.size(); ++i) {
    ASSERT_EQ(static_cast<float>(static_cast<double>(d_wte[i]) * quantum), forward[i]) << i;
    ASSERT_EQ(d_wpe[i], d_wte[i]) << i;
  }
}

TEST_F(DropoutMaskTest, NothingIsDroppedWhileNotTraining) {
  numerics_.training = false;
  const ResidualDropout op(kWidth, kRate, kOp);
  std::vector<float> ones(kWidth * kTokens, 1.0F);
  std::vector<float> residual(ones.size(), 2.0F);
  std::vector<float> forward(ones.size(), -1.0F);
  const TensorView in[] = {view(ones), view(residual)};
  const TensorView out[] = {view(forward)};
  OpArgs a = args();
  a.in = in;
  a.out = out;
  op.forward(a);
  EXPECT_EQ(forward, std::vector<float>(ones.size(), 3.0F));
}

}  // namespace
}  // namespace trainyard::engine

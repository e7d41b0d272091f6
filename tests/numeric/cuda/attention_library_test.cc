// Attention by a library, and the fall back to own kernels for what it has no plan for, and from
// the first failure of a pass on.

#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "kernels/cuda/attention_cudnn.h"
#include "tests/numeric/cuda/support.h"

namespace trainyard::kernels::cuda::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

enum class Fault { kNone, kOpen, kForward, kBackward };
constexpr size_t kDoubleScratchBytes = size_t{1} << 20U;
constexpr float kMark = 3.0F;

/// What a double of a library does and has done. Its results are kMark; where it fails, NaN.
struct DoubleState {
  Fault fault = Fault::kNone;
  int64_t unplanned = 0;  ///< tokens of sequences that it has no plan for
  int plans = 0, forwards = 0, backwards = 0;

  Status answer(Fault here) const { return answer(fault == here); }
  static Status answer(bool fails) {
    if (!fails) return {};
    return Error{ErrorCode::kUnavailable, "the double\nfails"};
  }
};

class DoublePlan final : public AttentionLibrary::Plan {
 public:
  DoublePlan(DoubleState& state, const AttentionProblem& problem)
      : state_(state), rows_(problem.sequences * problem.longest) {}
  size_t scratch_bytes() const override { return kDoubleScratchBytes; }
  Status forward(const AttentionForward& p, void*, cudaStream_t stream) override {
    ++state_.forwards;
    const Status status = state_.answer(Fault::kForward);
    write(p.out, rows_ * p.heads * p.head_dim, status, stream);
    return status;
  }
  Status backward(const AttentionBackward& p, void*, cudaStream_t stream) override {
    ++state_.backwards;
    const Status status = state_.answer(Fault::kBackward);
    const int64_t heads = p.heads + 2 * p.kv_heads;
    write(p.d_qkv, rows_ * heads * p.head_dim, status, stream);
    return status;
  }

 private:
  static void write(const Elements& to, int64_t count, const Status& status, cudaStream_t stream) {
    EXPECT_EQ(cudaSuccess, fill(to, status ? kMark : NAN, count, stream));
  }
  DoubleState& state_;
  int64_t rows_;
};

class DoubleLibrary final : public AttentionLibrary {
 public:
  explicit DoubleLibrary(DoubleState& state) : state_(state) {}
  Result<std::unique_ptr<Plan>> plan(const AttentionProblem& problem) override {
    ++state_.plans;
    TRAINYARD_TRY(DoubleState::answer(problem.longest == state_.unplanned));
    return std::make_unique<DoublePlan>(state_, problem);
  }

 private:
  DoubleState& state_;
};

class CudaAttentionLibraryTest : public CudaTest {
 protected:
  struct Results {
    Vector out, lse, d_qkv;
  };

  Attention::Open double_of(DoubleState& state) {
    return [&state]() -> Result<std::unique_ptr<AttentionLibrary>> {
      TRAINYARD_TRY(state.answer(Fault::kOpen));
      return std::make_unique<DoubleLibrary>(state);
    };
  }
  Attention::Log log() {
    return [this](const std::string& line) { lines_.push_back(line); };
  }

  static AttentionProblem problem(int64_t tokens, int64_t head_dim = 64) {
    return {.sequences = 2, .longest = tokens, .heads = 2, .kv_heads = 1, .head_dim = head_dim};
  }
  /// Operands of both passes and room for their results.
  struct Operands {
    int64_t packed = 0, dense = 0, statistics = 0;  ///< elements
    DeviceRows rows;
    AttentionForward forward;
    AttentionBackward backward;
    float* scratch = nullptr;
  };
  Operands operands(const AttentionProblem& p) {
    const DeviceRows all =
        upload(sequences_of(std::vector<int64_t>(static_cast<size_t>(p.sequences), p.longest)));
    const int64_t rows = all.count;
    constexpr DType kType = DType::kBFloat16;
    Operands o{.packed = rows * (p.heads + 2 * p.kv_heads) * p.head_dim,
               .dense = rows * p.heads * p.head_dim,
               .statistics = rows * p.heads,
               .rows = all};
    const auto describe = [&](auto& to) {
      to.heads = p.heads;
      to.kv_heads = p.kv_heads;
      to.head_dim = p.head_dim;
    };
    describe(o.forward);
    describe(o.backward);
    o.forward.qkv = o.backward.qkv = {upload(Tensor(kType, normal(o.packed, 1))), kType};
    o.backward.out = o.forward.out = {allocate<uint16_t>(o.dense), kType};
    o.backward.lse = o.forward.lse = allocate<float>(o.statistics);
    o.backward.d_out = {upload(Tensor(kType, normal(o.dense, 2))), kType};
    o.backward.d_qkv = {allocate<uint16_t>(o.packed), kType};
    o.scratch = allocate<float>(o.statistics);
    return o;
  }
  Results results(const Operands& o) {
    return {download(o.forward.out.data, DType::kBFloat16, o.dense).doubles(),
            doubles(download(o.forward.lse, o.statistics)),
            download(o.backward.d_qkv.data, DType::kBFloat16, o.packed).doubles()};
  }
  Results by_own_kernels(const AttentionProblem& p) {
    const Operands o = operands(p);
    EXPECT_EQ(cudaSuccess, attention_forward(o.forward, o.rows, stream_));
    EXPECT_EQ(cudaSuccess, attention_backward(o.backward, o.rows, o.scratch, stream_));
    return results(o);
  }
  Results by(Attention& attention, const AttentionProblem& p) {
    const Operands o = operands(p);
    const size_t bytes = attention.prepare(p);
    EXPECT_GE(bytes, static_cast<size_t>(o.statistics) * sizeof(float));
    void* const scratch = allocate<std::byte>(static_cast<int64_t>(bytes));
    EXPECT_EQ(cudaSuccess, attention.forward(o.forward, o.rows, scratch, stream_));
    EXPECT_EQ(cudaSuccess, attention.backward(o.backward, o.rows, scratch, stream_));
    return results(o);
  }

  std::vector<std::string> lines_;
};
TRAINYARD_CUDA_TEST_SUITE(CudaAttentionLibraryTest);

TEST_P(CudaAttentionLibraryTest, TheLibraryWorksAndPlansEachProblemOnce) {
  DoubleState state;
  Attention attention(double_of(state), log());
  for (const int64_t tokens : {20, 9, 20}) {
    EXPECT_EQ(kDoubleScratchBytes, attention.prepare(problem(tokens)));
    const Operands o = operands(problem(tokens));
    ASSERT_EQ(cudaSuccess, attention.forward(o.forward, o.rows, nullptr, stream_));
    ASSERT_EQ(cudaSuccess, attention.backward(o.backward, o.rows, nullptr, stream_));
    EXPECT_EQ(kMark, download(o.forward.out.data, DType::kBFloat16, 1).doubles()[0]);
    EXPECT_EQ(kMark, download(o.backward.d_qkv.data, DType::kBFloat16, 1).doubles()[0]);
  }
  EXPECT_EQ(2, state.plans);
  EXPECT_EQ(3, state.forwards);
  EXPECT_EQ(3, state.backwards);
  EXPECT_TRUE(attention.uses_library());
  EXPECT_THAT(lines_, IsEmpty());
}

TEST_P(CudaAttentionLibraryTest, AWindowIsForOwnKernels) {
  DoubleState state;
  Attention attention(double_of(state), log());
  AttentionProblem windowed = problem(20);
  windowed.has_window = true;
  attention.prepare(windowed);
  Operands o = operands(problem(20));
  o.forward.window = o.backward.window = 5;
  ASSERT_EQ(cudaSuccess, attention.forward(o.forward, o.rows, nullptr, stream_));
  ASSERT_EQ(cudaSuccess, attention.backward(o.backward, o.rows, o.scratch, stream_));
  EXPECT_NE(kMark, download(o.forward.out.data, DType::kBFloat16, 1).doubles()[0]);
  EXPECT_EQ(0, state.plans + state.forwards + state.backwards);
  EXPECT_TRUE(attention.uses_library());
}

TEST_P(CudaAttentionLibraryTest, AProblemWithoutAPlanGetsOwnKernelsAndTheOthersDoNot) {
  DoubleState state{.unplanned = 9};
  Attention attention(double_of(state), log());
  const Vector own = by_own_kernels(problem(9)).d_qkv;
  for (int times = 0; times < 2; ++times) {
    EXPECT_EQ(own, by(attention, problem(9)).d_qkv);
    EXPECT_EQ(kMark, by(attention, problem(20)).d_qkv[0]);
  }
  EXPECT_EQ(2, state.plans);
  EXPECT_EQ(2, state.backwards);
  EXPECT_FALSE(attention.uses_library(problem(9)));
  EXPECT_TRUE(attention.uses_library(problem(20)));
  EXPECT_THAT(lines_, ElementsAre("attention of 2 sequences of 9 tokens runs on Trainyard's own "
                                  "kernels: the double fails"));

  lines_.clear();
  Attention small(double_of(state), log(), kDoubleScratchBytes - 1);
  EXPECT_NE(kMark, by(small, problem(20)).d_qkv[0]);
  EXPECT_FALSE(small.uses_library(problem(20)));
  EXPECT_THAT(lines_, ElementsAre(HasSubstr("the library wants 1048576 bytes of scratch, planned "
                                            "are 1048575")));
}

TEST_P(CudaAttentionLibraryTest, AFailureGivesOwnResultsFromThenOnAndOneLine) {
  for (const Fault fault : {Fault::kOpen, Fault::kForward}) {
    lines_.clear();
    DoubleState state{.fault = fault};
    Attention attention(double_of(state), log());
    for (const int64_t tokens : {20, 9}) {
      const Results own = by_own_kernels(problem(tokens));
      const Results fallen = by(attention, problem(tokens));
      EXPECT_EQ(own.out, fallen.out);
      EXPECT_EQ(own.lse, fallen.lse);
      EXPECT_EQ(own.d_qkv, fallen.d_qkv);
    }
    EXPECT_THAT(lines_, ElementsAre("attention runs on Trainyard's own kernels: the double fails"))
        << static_cast<int>(fault);
    EXPECT_FALSE(attention.uses_library());
    EXPECT_EQ(fault == Fault::kOpen ? 0 : 1, state.plans);
    EXPECT_EQ(fault == Fault::kForward ? 1 : 0, state.forwards);
    EXPECT_EQ(0, state.backwards);
  }
}

TEST_P(CudaAttentionLibraryTest, AFailureOfBackwardGivesOwnGradients) {
  const Vector own = by_own_kernels(problem(9)).d_qkv;
  DoubleState state{.fault = Fault::kBackward};
  Attention attention(double_of(state), log());
  attention.prepare(problem(9));
  const Operands o = operands(problem(9));
  ASSERT_EQ(cudaSuccess, attention_forward(o.forward, o.rows, stream_));
  ASSERT_EQ(cudaSuccess, attention.backward(o.backward, o.rows, o.scratch, stream_));
  EXPECT_EQ(own, results(o).d_qkv);
  EXPECT_EQ(1, state.backwards);
  EXPECT_FALSE(attention.uses_library());
  EXPECT_EQ(1U, lines_.size());
}

TEST_P(CudaAttentionLibraryTest, RefusesAProblemThatWasNotPrepared) {
  DoubleState state;
  Attention attention(double_of(state), log());
  attention.prepare(problem(9));
  Operands other = operands(problem(10));
  EXPECT_EQ(cudaErrorInvalidValue, attention.forward(other.forward, other.rows, nullptr, stream_));
  EXPECT_EQ(0, state.forwards);
  EXPECT_TRUE(attention.uses_library());
  EXPECT_THAT(lines_, IsEmpty());
}

TEST_P(CudaAttentionLibraryTest, OwnKernelsDoWhatNoLibraryIsAskedFor) {
  DoubleState state;
  Attention attention(double_of(state), log());
  attention.prepare(problem(9));
  Operands o = operands(problem(9));
  o.forward.dropout.rate = 0.5F;
  EXPECT_EQ(cudaSuccess, attention.forward(o.forward, o.rows, nullptr, stream_));
  o.forward.dropout.rate = 0;
  o.rows.count -= 1;
  EXPECT_EQ(cudaSuccess, attention.forward(o.forward, o.rows, nullptr, stream_)) << "other lengths";
  o.rows.count += 1;
  o.forward.causal = false;
  EXPECT_EQ(cudaSuccess, attention.forward(o.forward, o.rows, nullptr, stream_)) << "bidirectional";
  EXPECT_EQ(0, state.forwards);
  EXPECT_TRUE(attention.uses_library());
  EXPECT_THAT(lines_, IsEmpty());
}

#if defined(TRAINYARD_DEVICE_BUILD)

TEST_P(CudaAttentionLibraryTest, CudnnAgreesWithOwnKernelsAndWithItself) {
  for (const auto& [tokens, head_dim] : {std::pair{128, 64}, {77, 64}, {70, 128}}) {
    Attention attention([] { return open_cudnn_attention({.deterministic = true}); }, log());
    const Results own = by_own_kernels(problem(tokens, head_dim));
    const Results cudnn = by(attention, problem(tokens, head_dim));
    if (!attention.uses_library()) GTEST_SKIP() << lines_.at(0);
    EXPECT_TRUE(near(cudnn.lse, own.lse, 1e-4, 1e-4));
    EXPECT_TRUE(near(cudnn.out, own.out, 0.02, 0.01));
    EXPECT_TRUE(near(cudnn.d_qkv, own.d_qkv, 0.03, 0.02));
    EXPECT_EQ(cudnn.d_qkv, by(attention, problem(tokens, head_dim)).d_qkv);
    EXPECT_GE(attention.prepare(problem(tokens, head_dim)),
              static_cast<size_t>(2 * 2 * tokens * tokens * 2));
  }
}

#else

TEST_P(CudaAttentionLibraryTest, ABuildWithoutTheFrontEndSaysSo) {
  Attention attention([] { return open_cudnn_attention({}); }, log());
  EXPECT_THAT(lines_, ElementsAre(HasSubstr("run tools/setup cuda")));
  EXPECT_FALSE(attention.uses_library());
}

#endif

}  // namespace
}  // namespace trainyard::kernels::cuda::test

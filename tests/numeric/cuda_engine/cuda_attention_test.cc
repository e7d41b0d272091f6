// Attention by a library within the engine, with Fast numerics on an emulated GPU: a double of the
// library computes by own kernels, so that bits tell whether it saw the right operands.

#include <cstring>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/cuda/attention.h"
#include "tests/numeric/cuda_engine/one_rank.h"
#include "tests/support/exact.h"
#include "worker/device/cuda_plan.h"
#include "worker/job/memory_plan.h"
#include "worker/state/units.h"

namespace trainyard::engine {
namespace {

namespace cuda = kernels::cuda;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kUnitBytes;
using testing::small_spec;
using testing::stream_of;
using testing::Trained;

/// What the double does and has done.
struct DoubleState {
  size_t scratch_bytes = 4096;
  int fails_at = -1;  ///< pass that fails, from 0
  bool is_missing = false;
  std::vector<cuda::AttentionProblem> planned;
  int passes = 0;
};

class DoublePlan final : public cuda::AttentionLibrary::Plan {
 public:
  DoublePlan(DoubleState& state, const cuda::AttentionProblem& problem) : state_(state) {
    std::vector<kernels::Sequence> sequences;
    std::vector<int32_t> sequence_of;
    for (int64_t i = 0; i < problem.sequences; ++i) {
      sequences.push_back({.begin = i * problem.longest, .length = problem.longest});
      sequence_of.insert(sequence_of.end(), static_cast<size_t>(problem.longest),
                         static_cast<int32_t>(i));
    }
    rows_ = {.count = problem.sequences * problem.longest,
             .sequences = on_gpu(sequences),
             .sequences_count = problem.sequences,
             .longest = problem.longest,
             .sequence_of = on_gpu(sequence_of)};
  }
  ~DoublePlan() override {
    for (void* const block : blocks_)
      cudaFree(block);
  }
  size_t scratch_bytes() const override { return state_.scratch_bytes; }
  Status forward(const kernels::AttentionForward& p, void* scratch, cudaStream_t stream) override {
    TRAINYARD_TRY(pass(scratch, stream));
    EXPECT_EQ(cudaSuccess, cuda::attention_forward(p, rows_, stream));
    return {};
  }
  Status backward(const kernels::AttentionBackward& p, void* scratch,
                  cudaStream_t stream) override {
    TRAINYARD_TRY(pass(scratch, stream));
    EXPECT_EQ(cudaSuccess,
              cuda::attention_backward(p, rows_, static_cast<float*>(scratch), stream));
    return {};
  }

 private:
  template <typename T>
  const T* on_gpu(const std::vector<T>& all) {
    void* data = nullptr;
    EXPECT_EQ(cudaSuccess, cudaMalloc(&data, all.size() * sizeof(T)));
    cudaStream_t stream = nullptr;
    EXPECT_EQ(cudaSuccess, cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    EXPECT_EQ(cudaSuccess, cudaMemcpyAsync(data, all.data(), all.size() * sizeof(T),
                                           cudaMemcpyHostToDevice, stream));
    EXPECT_EQ(cudaSuccess, cudaStreamSynchronize(stream));
    EXPECT_EQ(cudaSuccess, cudaStreamDestroy(stream));
    blocks_.push_back(data);
    return static_cast<const T*>(data);
  }
  /// The whole scratch is the library's.
  Status pass(void* scratch, cudaStream_t stream) {
    if (state_.passes++ == state_.fails_at)
      return Error{ErrorCode::kUnavailable, "the double fails"};
    EXPECT_EQ(reinterpret_cast<uintptr_t>(scratch) % 256, 0U);
    EXPECT_EQ(cudaSuccess, cudaMemsetAsync(scratch, 0x7F, state_.scratch_bytes, stream));
    return {};
  }

  DoubleState& state_;
  cuda::DeviceRows rows_;
  std::vector<void*> blocks_;
};

class DoubleLibrary final : public cuda::AttentionLibrary {
 public:
  explicit DoubleLibrary(DoubleState& state) : state_(state) {}
  Result<std::unique_ptr<Plan>> plan(const cuda::AttentionProblem& problem) override {
    EXPECT_FALSE(problem.needs_own());
    state_.planned.push_back(problem);
    return std::make_unique<DoublePlan>(state_, problem);
  }

 private:
  DoubleState& state_;
};

class CudaAttentionTest : public testing::CudaEngineTest {
 protected:
  /// A block of one head of 64, in two micro-batches, of which the second is smaller.
  static api::EngineSpec spec() {
    api::EngineSpec spec = small_spec(api::NumberFormat::kBF16);
    spec.model.hidden = 64;
    spec.model.heads = 1;
    spec.model.kv_heads = 1;
    spec.model.ffn = 72;
    spec.model.dropout = 0;
    spec.batch.global_sequences = 3;
    spec.numerics = {.mode = api::NumericsMode::kFast};
    return spec;
  }
  Result<std::unique_ptr<Device>> device(const api::EngineSpec& spec) {
    static const cuda::cublaslt::Api api = testing_support::fake_cublaslt_api();
    TRAINYARD_ASSIGN(const KernelShapes shapes, kernel_shapes(spec));
    return make_cuda_device(
        {.shapes = shapes,
         .cublaslt = &api,
         .attention = [this]() -> Result<std::unique_ptr<cuda::AttentionLibrary>> {
           if (state_.is_missing) return Error{ErrorCode::kUnavailable, "no such library"};
           return std::make_unique<DoubleLibrary>(state_);
         },
         .log = [this](const std::string& line) { lines_.push_back(line); }});
  }
  void with_library(const api::EngineSpec& spec, const std::function<void(Engine&)>& use) {
    comm::testing::run_world(comm::TransportKind::kLocal, 1, [&](comm::Communicator& world) {
      const auto gpu = device(spec);
      ASSERT_TRUE(gpu) << gpu.error().message;
      const comm::Groups groups = comm::Groups::of_data_ranks(world);
      const auto engine = Engine::create(
          {.spec = spec, .device = gpu->get(), .groups = &groups, .unit_bytes = kUnitBytes});
      ASSERT_TRUE(engine) << engine.error().message;
      use(**engine);
    });
  }
  Trained by_library(const api::EngineSpec& spec, int64_t steps) {
    Trained trained;
    with_library(spec, [&](Engine& engine) {
      const auto result = testing::train_engine(engine, steps);
      ASSERT_TRUE(result) << result.error().message;
      trained = *result;
    });
    return trained;
  }

  DoubleState state_;
  std::vector<std::string> lines_;
};
INSTANTIATE_TEST_SUITE_P(Precision, CudaAttentionTest, ::testing::Values(api::NumberFormat::kBF16));

/// As graphs from the third step on.
TEST_P(CudaAttentionTest, TrainsByTheLibrary) {
  const Trained own = on_gpu(spec(), 3);
  const Trained trained = by_library(spec(), 3);
  EXPECT_TRUE(testing_support::same_hash(trained.hash, own.hash));
  EXPECT_EQ(trained.losses, own.losses);
  EXPECT_EQ(trained.held_out, own.held_out);
  EXPECT_THAT(lines_, IsEmpty());
  // Of both sizes of a micro-batch, and nothing else.
  ASSERT_EQ(state_.planned.size(), 2U);
  EXPECT_EQ(state_.planned[0].sequences, 2);
  EXPECT_EQ(state_.planned[1].sequences, 1);
  for (const cuda::AttentionProblem& problem : state_.planned) {
    EXPECT_EQ(problem.longest, spec().data.sequence_length);
    EXPECT_EQ(problem.head_dim, 64);
  }
  EXPECT_GT(state_.passes, 0);
}

/// Sampling has every length, and each would be planned for seconds.
TEST_P(CudaAttentionTest, PromptsAreForOwnKernels) {
  with_library(spec(), [&](Engine& engine) {
    EXPECT_TRUE(engine.initialize());
    const std::vector<int32_t> prompt = {1, 2, 3, 4, 5};
    ASSERT_TRUE(engine.next_logits(prompt));
  });
  EXPECT_THAT(state_.planned, IsEmpty());
  EXPECT_EQ(state_.passes, 0);
}

/// In the plan as on the GPU there is room for it, and a library that wants more is not used.
TEST_P(CudaAttentionTest, WorksInPlannedMemory) {
  const auto plan =
      MemoryPlan::make({.spec = spec(),
                        .mesh = {},
                        .formats = cuda_formats(compute_type(spec().precision), DType::kFloat32),
                        .unit_bytes = kUnitBytes});
  ASSERT_TRUE(plan) << plan.error().message;
  const CudaScratch places = cuda_scratch(*kernel_shapes(spec()));
  const Trained own = on_gpu(spec(), 1);
  for (const bool fits : {true, false}) {
    lines_.clear();
    state_ = {};
    state_.scratch_bytes = static_cast<size_t>(places.attention_bytes) + (fits ? 0 : 1);
    with_library(spec(), [&](Engine& engine) {
      EXPECT_EQ(plan->gpu_bytes(0), simt::allocated_bytes());
      const auto trained = testing::train_engine(engine, 1);
      ASSERT_TRUE(trained) << trained.error().message;
      EXPECT_TRUE(testing_support::same_hash(trained->hash, own.hash)) << fits;
    });
    EXPECT_EQ(state_.passes > 0, fits);
    if (fits) {
      EXPECT_THAT(lines_, IsEmpty());
    } else {
      // The last micro-batch is smaller.
      EXPECT_THAT(lines_, ElementsAre(HasSubstr("of 2 sequences of 13 tokens runs on"),
                                      HasSubstr("of 1 sequences of 13 tokens runs on")));
      EXPECT_THAT(lines_, ::testing::Each(HasSubstr("bytes of scratch, planned are")));
    }
  }
}

/// Missing, or failing in the middle of a run: own kernels go on, and the log says so once.
TEST_P(CudaAttentionTest, OwnKernelsTakeThePlaceOfALibraryThatFails) {
  const Trained own = on_gpu(spec(), 1);
  for (const int fails_at : {-1, 3}) {
    lines_.clear();
    state_ = {.fails_at = fails_at, .is_missing = fails_at < 0};
    const Trained trained = by_library(spec(), 1);
    EXPECT_TRUE(testing_support::same_hash(trained.hash, own.hash)) << fails_at;
    EXPECT_EQ(state_.passes, fails_at + 1);
    EXPECT_THAT(lines_, ElementsAre(HasSubstr(fails_at < 0 ? "own kernels: no such library"
                                                           : "own kernels: the double fails")));
  }
}

/// Exact runs, and what cuDNN does not do, ask for no library.
TEST_P(CudaAttentionTest, OthersAskForNoLibrary) {
  api::EngineSpec canonical = spec();
  canonical.numerics = {.mode = api::NumericsMode::kCanonical};
  api::EngineSpec dropped = spec();
  dropped.model.dropout = 0.1;
  api::EngineSpec fp32 = spec();
  fp32.precision.compute = api::NumberFormat::kFP32;
  api::EngineSpec isolated = spec();
  isolated.data.documents = api::Documents::kIsolate;
  state_.is_missing = true;  // it would be told of
  api::EngineSpec windows = spec();
  windows.model.family = api::ModelFamily::kMistral;
  windows.model.sliding_window = windows.data.sequence_length - 1;
  for (const api::EngineSpec& other : {canonical, dropped, fp32, isolated, windows}) {
    EXPECT_EQ(kernel_shapes(other)->library_attention, 0);
    const auto made = device(other);
    ASSERT_TRUE(made) << made.error().message;
    EXPECT_THAT(lines_, IsEmpty());
  }
}

}  // namespace
}  // namespace trainyard::engine

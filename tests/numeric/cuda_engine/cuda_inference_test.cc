// Checkpoints that are evaluated and sampled on an emulated GPU, as `trainyard evaluate` and
// `trainyard sample` do.

#include <memory>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "tests/numeric/cuda_engine/one_rank.h"
#include "tests/support/temporary_directory.h"
#include "tests/unit/worker/checkpoint/job_directory.h"
#include "worker/checkpoint/reader.h"
#include "worker/data/token_writer.h"
#include "worker/device/cuda_device.h"
#include "worker/job/engine_state.h"
#include "worker/matrix/world.h"
#include "worker/sample/trained_model.h"

namespace trainyard::engine {
namespace {

using ::testing::HasSubstr;

using testing::CudaEngineTest;
using testing::decoder_spec;
using testing::small_spec;
using testing::smaller_if_watched;
using testing::stream_of;

constexpr int64_t kAtOnce = 2;

class CudaInferenceTest : public CudaEngineTest {
 protected:
  static Result<std::unique_ptr<Device>> make_device(const CudaDeviceOptions& options) {
    static const kernels::cuda::cublaslt::Api api = testing_support::fake_cublaslt_api();
    CudaDeviceOptions with_library = options;
    with_library.cublaslt = &api;
    return make_cuda_device(with_library);
  }
  /// Trains a step on that device and saves. Returns the loss of held-out windows.
  double save_trained(const api::EngineSpec& spec, bool on_gpu) {
    job_.emplace();
    double loss = 0;
    with_engine(spec, on_gpu, [&](Engine& engine) {
      EXPECT_TRUE(engine.initialize());
      const auto stream = stream_of(spec);
      matrix::StreamBatches batches(stream, spec, 1, 0);
      ASSERT_TRUE(engine.step(batches));
      EngineState state(engine);
      checkpoint::testing::save_first(files_, *job_, *state.snapshot());
      loss = loss_of(engine);
    });
    return loss;
  }
  Result<std::unique_ptr<TrainedModel>> load(api::DeviceKind device, bool samples = true) {
    auto reader = checkpoint::open_newest_good(files_, job_->root(), std::nullopt,
                                               checkpoint::Verify::kAll, nullptr);
    EXPECT_TRUE(reader) << reader.error().message;
    return TrainedModel::load(**reader, {.threads = 1,
                                         .device = device,
                                         .cuda = &support_,
                                         .micro_sequences = kAtOnce,
                                         .samples = samples});
  }
  static double loss_of(Engine& engine) {
    api::EngineSpec held_out = engine.spec();
    held_out.device = api::DeviceKind::kCpu;  // held-out windows know no grains
    held_out.batch = {.global_sequences = 3, .micro_sequences = kAtOnce};
    const auto stream = stream_of(held_out);
    matrix::StreamBatches batches(stream, held_out, 1, 0);
    const auto report = engine.evaluate(batches, 3, kAtOnce);
    EXPECT_TRUE(report) << report.error().message;
    return report ? report->loss : 0;
  }
  static std::vector<float> logits_of(Engine& engine, int64_t tokens) {
    const auto stream = stream_of(engine.spec());
    const auto logits = engine.next_logits(std::span(stream).first(static_cast<size_t>(tokens)));
    EXPECT_TRUE(logits) << logits.error().message;
    return logits ? std::vector<float>(logits->begin(), logits->end()) : std::vector<float>();
  }
  double bound() const { return GetParam() == api::NumberFormat::kFP32 ? 1e-4 : 0.02; }

  const CudaSupport support_ = {find_cuda_device, make_device, nullptr};
  checkpoint::PosixFileSystem files_;
  std::optional<checkpoint::testing::JobDirectory> job_;
};
INSTANTIATE_TEST_SUITE_P(Precisions, CudaInferenceTest, ::testing::ValuesIn(testing::precisions()));

TEST_P(CudaInferenceTest, LossAndLogitsAreThoseOfProcessors) {
  for (const bool is_gpt2 : {true, false}) {
    const bool trained_on_gpu = is_gpt2;
    api::EngineSpec spec =
        smaller_if_watched(is_gpt2 ? small_spec(GetParam()) : decoder_spec(GetParam()));
    spec.model.max_positions = 40;  // more than a micro-batch has rows
    const double trained = save_trained(spec, trained_on_gpu);
    const auto on_processors = load(api::DeviceKind::kCpu);
    const auto on_gpu = load(api::DeviceKind::kAuto);
    ASSERT_TRUE(on_processors) << on_processors.error().message;
    ASSERT_TRUE(on_gpu) << on_gpu.error().message;
    Engine& cpu = (*on_processors)->engine();
    Engine& gpu = (*on_gpu)->engine();
    EXPECT_EQ(gpu.spec().device, api::DeviceKind::kCuda);
    const double loss = loss_of(gpu);
    EXPECT_EQ(trained_on_gpu ? loss : loss_of(cpu), trained);
    EXPECT_NEAR(loss_of(cpu), loss, bound());
    EXPECT_EQ(loss_of(gpu), loss) << "twice the same";
    for (const int64_t tokens : {int64_t{1}, int64_t{5}, gpu.model().max_positions}) {
      const std::vector<float> expected = logits_of(cpu, tokens);
      const std::vector<float> found = logits_of(gpu, tokens);
      ASSERT_EQ(expected.size(), found.size());
      for (int64_t id = 0; id < gpu.model().vocab; ++id)
        ASSERT_NEAR(expected[static_cast<size_t>(id)], found[static_cast<size_t>(id)], 2 * bound())
            << tokens << " tokens, id " << id;
    }
  }
}

/// Cuts of a processor's sums may not fit a GPU's products; its own may be others.
TEST_P(CudaInferenceTest, CutsOfAProcessorsSumsStayThere) {
  api::EngineSpec spec = testing::tiny(small_spec(GetParam()));
  spec.device = api::DeviceKind::kCpu;
  spec.numerics = {.tensor_chunks = 3};
  save_trained(spec, /*on_gpu=*/false);
  const auto loaded = load(api::DeviceKind::kCuda);
  ASSERT_TRUE(loaded) << loaded.error().message;
  EXPECT_LE(loaded.value()->engine().spec().numerics.tensor_chunks.value_or(0), 1);
}

/// Evaluating alone needs no memory for prompts.
TEST_P(CudaInferenceTest, EvaluatesWithoutRoomForPrompts) {
  api::EngineSpec spec = testing::tiny(small_spec(GetParam()));
  spec.model.max_positions = 4096;
  save_trained(spec, /*on_gpu=*/false);
  int64_t bytes[2] = {};
  for (const bool samples : {false, true}) {
    const auto loaded = load(api::DeviceKind::kCuda, samples);
    ASSERT_TRUE(loaded) << loaded.error().message;
    EXPECT_GT(loss_of((*loaded)->engine()), 0);
    bytes[samples ? 1 : 0] = simt::allocated_bytes();
  }
  EXPECT_LT(bytes[0], bytes[1]);
}

TEST_P(CudaInferenceTest, CommandsComputeWhereTheyAreTold) {
  const api::EngineSpec spec = testing::tiny(small_spec(GetParam()));
  save_trained(spec, /*on_gpu=*/true);
  const testing_support::TemporaryDirectory folder;
  const std::string tokens = (folder.path() / "tokens").string();
  auto writer = *data::TokenWriter::create(
      tokens, {.token_bytes = 4, .vocabulary = spec.model.vocab, .tokenizer = "none"});
  ASSERT_TRUE(writer.append(stream_of(spec)));
  ASSERT_TRUE(writer.finish());
  const auto ran = [&](std::vector<std::string> command, const std::string& device) {
    command.insert(command.end(), {"--device", device, "-o", "json"});
    std::ostringstream out;
    std::ostringstream err;
    EXPECT_EQ(cli::run(command, out, err, &support_), 0) << err.str();
    return nlohmann::json::parse(out.str(), nullptr, false).value("device", "none");
  };
  const std::string root = job_->root().string();
  for (const std::string device : {"Cpu", "Cuda"}) {
    EXPECT_EQ(ran({"evaluate", root, tokens, "--sequences", "3"}, device), device);
    EXPECT_EQ(ran({"sample", root, "--tokens", "2", "--tokenizer", "bytes"}, device), device);
  }
  EXPECT_EQ(ran({"evaluate", root, tokens, "--sequences", "3"}, "Auto"), "Cuda");
  simt::emulation_options().memory_bytes = 100'000;
  std::ostringstream out;
  std::ostringstream err;
  EXPECT_EQ(cli::run({"sample", root, "--tokenizer", "bytes"}, out, err, &support_), 75);
  EXPECT_THAT(err.str(), HasSubstr("; --device Cpu computes on the CPU"));
  simt::reset_emulation();
  simt::emulation_options() = {};
}

TEST_P(CudaInferenceTest, AutoLeavesModelsThatNoKernelTakesToProcessors) {
  api::EngineSpec spec = matrix::prime_spec(GetParam());
  spec.data.tokens = {"tokens/train"};
  save_trained(spec, /*on_gpu=*/false);
  const auto loaded = load(api::DeviceKind::kAuto);
  ASSERT_TRUE(loaded) << loaded.error().message;
  EXPECT_EQ((*loaded)->engine().spec().device, api::DeviceKind::kCpu);
  const auto refused = load(api::DeviceKind::kCuda);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidConfig);
  EXPECT_THAT(refused.error().message, HasSubstr("on a GPU"));
}

TEST_P(CudaInferenceTest, AutoIsProcessorsWhereThereIsNoGpu) {
  save_trained(testing::tiny(small_spec(GetParam())), /*on_gpu=*/false);
  simt::emulation_options().devices = 0;
  const auto loaded = load(api::DeviceKind::kAuto);
  ASSERT_TRUE(loaded) << loaded.error().message;
  EXPECT_EQ((*loaded)->engine().spec().device, api::DeviceKind::kCpu);
  EXPECT_EQ(load(api::DeviceKind::kCuda).error().code, ErrorCode::kInvalidConfig);
  simt::emulation_options() = {};
}

}  // namespace
}  // namespace trainyard::engine

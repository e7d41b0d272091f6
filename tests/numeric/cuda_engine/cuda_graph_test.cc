// Steps of a lone GPU that are launched as CUDA graphs: the bits of plain steps, whatever changes
// between them.

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/clock.h"
#include "common/log/log.h"
#include "tests/numeric/cuda_engine/one_rank.h"
#include "tests/support/exact.h"
#include "tests/support/extent.h"
#include "tests/support/temporary_directory.h"
#include "worker/data/token_writer.h"
#include "worker/device/cuda_plan.h"
#include "worker/job/engine_state.h"
#include "worker/matrix/world.h"
#include "worker/rank/train_loop.h"

namespace trainyard::engine {
namespace {

using ::testing::HasSubstr;

using testing::decoder_spec;
using testing::small_spec;
using testing::stream_of;
using testing::tiny;

/// Steps from the third on are launched as graphs, of passes and of updates.
class CudaGraphTest : public testing::CudaEngineTest {
 protected:
  struct Run {
    std::vector<double> losses, norms, rates;
    std::string hash;
    std::vector<bool> stops;
    std::string why_plain;
    uint64_t graph_launches = 0, launches = 0;
  };
  struct Extras {
    std::function<void(Engine&, int64_t step)> between;  ///< called before each step
    int64_t stop_at = -1;                                ///< the step in which a stop is asked for
    const api::EngineSpec* rows_of = nullptr;
  };
  static Run run(const api::EngineSpec& spec, bool graphs, int64_t steps, const Extras& extras) {
    Run run;
    const auto counters = simt::emulation_counters();
    const auto use = [&](Engine& engine) {
      EXPECT_TRUE(engine.initialize());
      const auto stream = stream_of(spec);
      matrix::StreamBatches batches(stream, spec, 1, 0);
      for (int64_t step = 0; step < steps; ++step) {
        if (extras.between) extras.between(engine, step);
        const auto report = engine.step(batches, [&] { return step == extras.stop_at; });
        ASSERT_TRUE(report) << report.error().message;
        run.losses.push_back(report->loss);
        run.norms.push_back(report->gradient_norm);
        run.rates.push_back(report->learning_rate);
        run.stops.push_back(report->stop_requested);
      }
      run.why_plain = engine.device().why_parts_are_plain();
      run.hash = to_hex(EngineState(engine).hash().value());
    };
    with_engine(spec, true, use, graphs, extras.rows_of);
    run.graph_launches = simt::emulation_counters().graph_launches - counters.graph_launches;
    run.launches = simt::emulation_counters().launches - counters.launches;
    return run;
  }
  static Run run(const api::EngineSpec& spec, bool graphs, int64_t steps) {
    return run(spec, graphs, steps, {});
  }
  /// Watched, what graphs touch is all that is looked for.
  static void expect_bits_of_plain(const Run& graphs, const api::EngineSpec& spec, int64_t steps,
                                   const Extras& extras) {
    if (!testing::is_watched()) expect_same(graphs, run(spec, false, steps, extras));
  }
  static void expect_same(const Run& graphs, const Run& plain) {
    EXPECT_TRUE(testing_support::same_hash(graphs.hash, plain.hash));
    EXPECT_EQ(graphs.losses, plain.losses);
    EXPECT_EQ(graphs.norms, plain.norms);
    EXPECT_EQ(graphs.rates, plain.rates);
    EXPECT_EQ(graphs.stops, plain.stops);
    EXPECT_EQ(plain.graph_launches, 0U);
  }
};
INSTANTIATE_TEST_SUITE_P(Precisions, CudaGraphTest, ::testing::ValuesIn(testing::precisions()));

/// Tests of many steps, which a program with the race checker does not have.
class CudaGraphsBetweenStepsTest : public CudaGraphTest {};
std::vector<api::NumberFormat> unless_racing() {
  if (simt::has_race_checker()) return {};
  return {api::NumberFormat::kBF16};
}
INSTANTIATE_TEST_SUITE_P(Precision, CudaGraphsBetweenStepsTest,
                         ::testing::ValuesIn(unless_racing()));
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaGraphsBetweenStepsTest);

/// Of two micro-batches, with dropout and a learning rate that changes.
TEST_P(CudaGraphTest, StepsHaveTheBitsOfPlainOnes) {
  const bool is_small = testing::is_watched();
  const int64_t steps = is_small ? 3 : 4;
  int64_t index = GetParam() == api::NumberFormat::kFP32 ? 1 : 0;
  for (api::EngineSpec spec : {tiny(small_spec(GetParam())), tiny(decoder_spec(GetParam())),
                               testing::in_pieces(GetParam())}) {
    if (!is_small && !testing_support::in_sample("a model whose steps are graphs", index++, 3))
      continue;
    if (!is_small) spec.batch.global_sequences = 4;
    spec.learning_rate_schedule = {.name = api::ScheduleName::kCosine, .warmup_steps = 3};
    spec.steps = steps;
    const bool recomputes = spec.model.family != api::ModelFamily::kGPT2;
    if (recomputes) spec.parallelism.recompute = api::Recompute::kSelective;
    const Run graphs = run(spec, true, steps);
    const Run plain = run(spec, false, steps);
    expect_same(graphs, plain);
    EXPECT_EQ(graphs.launches, plain.launches) << "the graphs hold all kernels";
    EXPECT_EQ(graphs.graph_launches, static_cast<uint64_t>(2 * (steps - 2)));
    EXPECT_EQ(graphs.why_plain, "");
    if (is_small) break;
  }
}

/// Both are exchanged between the two graphs of a step.
TEST_P(CudaGraphsBetweenStepsTest, AStopAndALearningRateCountInTheirStep) {
  constexpr int64_t kSteps = 5;
  api::EngineSpec spec = tiny(small_spec(GetParam()));
  spec.model.dropout = 0;
  spec.steps = kSteps;
  spec.optimizer.weight_decay = 0;
  // It falls from the fourth step on.
  spec.learning_rate_schedule = {.name = api::ScheduleName::kLinear, .warmup_steps = 2};
  std::vector<double> held_out;
  const auto evaluate = [&](Engine& engine, int64_t /*step*/) {
    api::EngineSpec evaluated = spec;
    evaluated.device = api::DeviceKind::kCpu;
    const auto stream = stream_of(spec);
    matrix::StreamBatches windows(stream, evaluated, 1, 0);
    const auto report = engine.evaluate(windows, 2, 2);
    ASSERT_TRUE(report) << report.error().message;
    held_out.push_back(report->loss);
  };
  const Run graphs = run(spec, true, kSteps, {.between = evaluate, .stop_at = 3});
  EXPECT_EQ(graphs.graph_launches, static_cast<uint64_t>(2 * (kSteps - 2)));
  EXPECT_EQ(graphs.stops, (std::vector<bool>{false, false, false, true, false}));
  for (size_t step = 3; step < graphs.rates.size(); ++step)
    EXPECT_LT(graphs.rates[step], graphs.rates[step - 1]) << step;
  for (size_t step = 1; step < held_out.size(); ++step)
    EXPECT_NE(held_out[step], held_out[step - 1]) << step;
  if (testing::is_watched()) return;
  std::vector<double> of_plain;
  std::swap(held_out, of_plain);
  expect_same(graphs, run(spec, false, kSteps, {.between = evaluate, .stop_at = 3}));
  EXPECT_EQ(of_plain, held_out) << "after each step";
}

/// What runs between steps leaves its traces in the memory that graphs work in.
TEST_P(CudaGraphsBetweenStepsTest, WhatRunsBetweenStepsChangesNothing) {
  const api::EngineSpec spec = tiny(small_spec(GetParam()));
  const auto between = [&](Engine& engine, int64_t step) {
    if (step < 2) return;
    api::EngineSpec evaluated = spec;
    // Before the step that is launched first, its own sequences are the last on the GPU.
    const int64_t sequences = step == 2 ? 2 * step + 2 : 3;
    evaluated.batch.global_sequences = sequences;
    evaluated.batch.micro_sequences = step == 2 ? 2 : 1;
    evaluated.device = api::DeviceKind::kCpu;
    const auto stream = stream_of(spec);
    matrix::StreamBatches held_out(stream, evaluated, 1, 0);
    const auto report = engine.evaluate(held_out, sequences, evaluated.batch.micro_sequences);
    ASSERT_TRUE(report) << report.error().message;
  };
  constexpr int64_t kSteps = 4;
  const Run graphs = run(spec, true, kSteps, {.between = between});
  expect_bits_of_plain(graphs, spec, kSteps, {.between = between});
  EXPECT_EQ(graphs.graph_launches, static_cast<uint64_t>(2 * (kSteps - 2)));
}

/// A larger evaluation moves the activations, of which a graph has the addresses: two plain steps
/// follow, and another capture.
TEST_P(CudaGraphsBetweenStepsTest, StepsAreCapturedAgainWhereTheirMemoryHasMoved) {
  const api::EngineSpec spec = tiny(small_spec(GetParam()));
  api::EngineSpec large = spec;
  large.batch.global_sequences = large.batch.micro_sequences = 16;
  large.device = api::DeviceKind::kCpu;
  const auto grow = [&](Engine& engine, int64_t step) {
    if (step != 3) return;
    const auto stream = stream_of(spec);
    matrix::StreamBatches held_out(stream, large, 1, 0);
    const int64_t before = engine.memory().activations;
    const auto report = engine.evaluate(held_out, 16, 16);
    ASSERT_TRUE(report) << report.error().message;
    ASSERT_GT(engine.memory().activations, before);
  };
  constexpr int64_t kSteps = 6;
  simt::emulation_options().reuses_addresses = false;  // else it may grow where it is
  const Run graphs = run(spec, true, kSteps, {.between = grow, .rows_of = &large});
  EXPECT_EQ(graphs.graph_launches, 2U * 2U) << "of the third and of the last step";
  expect_bits_of_plain(graphs, spec, kSteps, {.between = grow, .rows_of = &large});
}

/// Documents: each step has other sequences, which kernels are told the number of.
TEST_P(CudaGraphsBetweenStepsTest, StepsOfOtherShapesRunAsTheyAre) {
  api::EngineSpec spec = tiny(small_spec(GetParam()));
  spec.data.documents = api::Documents::kIsolate;
  constexpr int64_t kSteps = 5;
  const Run graphs = run(spec, true, kSteps);
  EXPECT_EQ(graphs.graph_launches, 0U);
  EXPECT_EQ(graphs.why_plain, "steps differ in their sequences or in where their memory is");
  expect_bits_of_plain(graphs, spec, kSteps, {});
}

/// In a step that is launched as a graph: data that is refused, and a GPU that hangs or fails.
TEST_P(CudaGraphTest, AFailingGraphIsNamed) {
  const api::EngineSpec spec = tiny(small_spec(GetParam()));
  for (const bool bad_data : {true, false}) {
    with_gpu(spec, [&](Engine& engine) {
      EXPECT_TRUE(engine.initialize());
      auto stream = stream_of(spec);
      matrix::StreamBatches batches(stream, spec, 1, 0);
      for (int step = 0; step < 3; ++step)
        ASSERT_TRUE(engine.step(batches));
      const uint64_t launched = simt::emulation_counters().graph_launches;
      EXPECT_GE(launched, 2U);
      if (bad_data) {
        std::fill(stream.begin(), stream.end(), static_cast<int32_t>(spec.model.vocab) + 500);
      } else {
        simt::emulation_options().print_errors = false;
        std::byte inside;
        (void)cudaFree(&inside);  // an error that the emulation keeps
      }
      const auto report = engine.step(batches);
      ASSERT_FALSE(report);
      EXPECT_THAT(report.error().message,
                  HasSubstr(bad_data ? "a token of a micro-batch: found " : "CUDA: "));
      EXPECT_EQ(simt::emulation_counters().graph_launches - launched, bad_data ? 0U : 1U);
      simt::reset_emulation();  // else nothing is freed
    });
  }
}

/// With a graph in flight a wait ends at its deadline all the same.
TEST_P(CudaGraphTest, ADeadlineEndsAWaitForAGraph) {
  simt::emulation_options().seed = 7;
  with_device(small_spec(GetParam()), [](Device& device) {
    const auto block = *device.memory().allocate(1 << 10);
    for (int run = 0; run < 4; ++run) {
      device.begin_part(0, 1);
      for (int i = 0; i < 100; ++i)
        device.kernels().clear(block->bytes().data(), 1 << 10);
      device.end_part(true);
      const Status late = device.wait(std::chrono::milliseconds(0));
      ASSERT_FALSE(late);
      EXPECT_EQ(late.error().code, ErrorCode::kDeadline);
      EXPECT_TRUE(device.wait());
    }
    EXPECT_GE(simt::emulation_counters().graph_launches, 2U);
  });
}

/// A checkpoint's writer frees its pinned memory from a thread of its own, whatever is captured.
TEST_P(CudaGraphTest, OtherThreadsMayAllocateDuringACapture) {
  with_device(small_spec(GetParam()), [](Device& device) {
    const auto block = *device.memory().allocate(1 << 10);
    for (int run = 0; run < 4; ++run) {
      device.begin_part(0, 1);
      device.kernels().clear(block->bytes().data(), 1 << 10);
      std::thread([&] { EXPECT_TRUE(device.host_memory().allocate(1 << 10)); }).join();
      device.end_part(true);
      ASSERT_TRUE(device.wait()) << device.wait().error().message;
    }
    EXPECT_EQ(device.why_parts_are_plain(), "");
  });
}

/// Two blocks trade places, so that a copy made twice in a run would show.
TEST_P(CudaGraphTest, CopiesWithinAPartRunOncePerRun) {
  with_device(small_spec(GetParam()), [](Device& device) {
    constexpr int64_t kBytes = 256;
    const auto pinned = *device.host_memory().allocate(kBytes);
    const auto block = *device.memory().allocate(3 * kBytes);
    std::byte* const a = block->bytes().data();
    std::byte* const b = a + kBytes;
    std::byte* const spare = b + kBytes;
    pinned->bytes()[0] = std::byte{7};
    device.copy({a, pinned->bytes().data(), kBytes});
    const auto launched = simt::emulation_counters().graph_launches;
    for (int run = 1; run <= 5; ++run) {
      device.begin_part(0, 1);
      device.copy({spare, a, kBytes});
      device.copy({a, b, kBytes});
      device.copy({b, spare, kBytes});
      device.end_part(true);
      device.copy({pinned->bytes().data(), a, kBytes});
      ASSERT_TRUE(device.wait());
      EXPECT_EQ(pinned->bytes()[0], run % 2 == 0 ? std::byte{7} : std::byte{0}) << run;
    }
    EXPECT_EQ(simt::emulation_counters().graph_launches - launched, 3U);
    // To memory that only the host knows: at the first run already, not only at the third.
    std::byte here{};
    device.begin_part(0, 2);
    device.copy({&here, a, 1});
    device.end_part(true);
    EXPECT_THAT(device.wait().error().message, HasSubstr("copy to host memory within a part"));
  });
}

/// Cut short while it is captured: the stream may be waited for again, and nothing of it has run.
TEST_P(CudaGraphTest, APartThatIsCutShortLeavesNoCapture) {
  with_device(small_spec(GetParam()), [](Device& device) {
    const auto pinned = *device.host_memory().allocate(2);
    const auto block = *device.memory().allocate(1);
    pinned->bytes()[0] = std::byte{7};
    for (int run = 0; run < 2; ++run) {
      device.begin_part(0, 1);
      device.kernels().clear(block->bytes().data(), 1);
      device.end_part(true);
      ASSERT_TRUE(device.wait());
    }
    device.copy({block->bytes().data(), pinned->bytes().data(), 1});
    device.begin_part(0, 1);
    device.kernels().clear(block->bytes().data(), 1);
    device.end_part(false);
    device.copy({pinned->bytes().data() + 1, block->bytes().data(), 1});
    const Status waited = device.wait();
    ASSERT_TRUE(waited) << waited.error().message;
    EXPECT_EQ(pinned->bytes()[1], std::byte{7});
  });
}

TEST_P(CudaGraphTest, UploadsThatDoNotFitKeepAPartPlain) {
  with_device(small_spec(GetParam()), [](Device& device) {
    const auto block = *device.memory().allocate(kPinnedBytes);
    const std::vector<std::byte> much(static_cast<size_t>(kPinnedBytes));
    for (int run = 0; run < 3; ++run) {
      EXPECT_EQ(device.why_parts_are_plain(), "") << "not known before the second run is measured";
      device.begin_part(0, 1);
      device.copy({block->bytes().data(), much.data(), much.size()});
      device.end_part(true);
      ASSERT_TRUE(device.wait());
    }
    EXPECT_THAT(std::string(device.why_parts_are_plain()), HasSubstr("more tokens than"));
  });
}

/// A rank's whole run on an emulated GPU, and what its log says.
class CudaTrainLoopTest : public testing::CudaEngineTest {
 protected:
  std::string log_of(const api::EngineSpec& spec) const {
    const auto path = folder_.path() / "rank.log";
    std::filesystem::remove(path);
    {
      const auto log = *Logger::to_file(path, LogLevel::kInfo, LogFormat::kText);
      comm::testing::run_world(comm::TransportKind::kLocal, 1, [&](comm::Communicator& world) {
        const CudaSupport cuda = {find_cuda_device, make_device, nullptr};
        auto progress = *Progress::map(-1);
        const SystemClock clock;
        comm::Groups groups = comm::Groups::of_data_ranks(world);
        TrainContext context{.spec = spec, .job_uid = "test", .resume = {1, std::nullopt}};
        context.cuda = &cuda;
        context.groups = &groups;
        context.progress = &progress;
        context.log = log.get();
        context.clock = &clock;
        context.stop_requested = [] { return false; };
        context.end_at_once = end_at_once_;
        const auto outcome = engine::train(context);
        ASSERT_TRUE(outcome) << outcome.error().message;
        EXPECT_TRUE(outcome->complete);
      });
    }
    std::stringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }
  static Result<std::unique_ptr<Device>> make_device(const CudaDeviceOptions& options) {
    static const kernels::cuda::cublaslt::Api api = testing_support::fake_cublaslt_api();
    CudaDeviceOptions with_library = options;
    with_library.cublaslt = &api;
    with_library.deadline = deadline;
    return make_cuda_device(with_library);
  }
  api::EngineSpec spec() const {
    api::EngineSpec spec = tiny(small_spec(GetParam()));
    auto writer = *data::TokenWriter::create(
        folder_.path() / "tokens",
        {.token_bytes = 4, .vocabulary = spec.model.vocab, .tokenizer = "none"});
    EXPECT_TRUE(writer.append(stream_of(spec)));
    EXPECT_TRUE(writer.finish());
    spec.data.tokens = {(folder_.path() / "tokens").string()};
    spec.steps = 3;
    return spec;
  }

  static inline std::chrono::milliseconds deadline = kDeviceDeadline;
  std::function<void(const Error&)> end_at_once_;
  testing_support::TemporaryDirectory folder_;
};
INSTANTIATE_TEST_SUITE_P(Precision, CudaTrainLoopTest, ::testing::Values(api::NumberFormat::kBF16));

TEST_P(CudaTrainLoopTest, TheLogSaysWhyStepsAreNoGraphs) {
  const auto launched = simt::emulation_counters().graph_launches;
  EXPECT_EQ(log_of(spec()).find("CUDA graphs"), std::string::npos);
  EXPECT_EQ(simt::emulation_counters().graph_launches - launched, 2U);
  ASSERT_EQ(0, setenv("CUDA_LAUNCH_BLOCKING", "1", 1));  // NOLINT(concurrency-mt-unsafe)
  const std::string log = log_of(spec());
  ASSERT_EQ(0, unsetenv("CUDA_LAUNCH_BLOCKING"));  // NOLINT(concurrency-mt-unsafe)
  EXPECT_THAT(log, HasSubstr("steps are not launched as CUDA graphs"));
  const auto first = log.find("CUDA_LAUNCH_BLOCKING is set");
  EXPECT_NE(first, std::string::npos) << log;
  EXPECT_EQ(log.find("CUDA_LAUNCH_BLOCKING", first + 1), std::string::npos) << "said once";
  EXPECT_EQ(simt::emulation_counters().graph_launches - launched, 2U);
}

/// To free memory would wait for the kernel: the process ends, with the error that it came to.
TEST_P(CudaTrainLoopTest, AGpuThatHangsEndsTheProcessAndFreesNothing) {
  constexpr int kEnded = 42;
  end_at_once_ = [](const Error& error) {
    std::cerr << error.message << simt::call_faults().waits_forever;
    std::_Exit(kEnded);
  };
  const auto hang = [this] {
    deadline = std::chrono::milliseconds(100);
    simt::call_faults().fault = simt::CallFault::kNeverDone;
    simt::call_faults().function = "cudaLaunchKernel";
    simt::call_faults().at = 50;
    (void)log_of(spec());
  };
  EXPECT_EXIT(hang(), ::testing::ExitedWithCode(kEnded),
              "has not finished the enqueued work within 0.1 s; .* shared with others$");
}

}  // namespace
}  // namespace trainyard::engine

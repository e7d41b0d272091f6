// A run of one rank in which one call into CUDA or cuBLASLt fails, or what it enqueued does: every
// call that the run makes has its turn. The run ends with an error that says so, leaves nothing
// behind and never waits without an end.

#include "tests/numeric/cuda_engine/call_faults.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <stop_token>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/cuda/ops.h"
#include "kernels/head_parts.h"
#include "tests/numeric/cuda_engine/one_rank.h"
#include "worker/device/cuda_plan.h"

namespace trainyard::engine {
namespace {

using simt::call_faults;
using simt::CallFault;
using ::testing::AnyOf;
using testing::CallCase;
using ::testing::HasSubstr;
using testing::small_spec;
using testing::tiny;
using testing::Trained;

/// Nothing is that late but what is never done: the emulation computes within the calls.
constexpr std::chrono::milliseconds kDeadline{200};

struct End {
  std::string error;  ///< empty: none
  Trained trained;
};

/// Runs are traced, as a trace makes calls of its own.
class NoSpans final : public trace::SpanSink {
 public:
  void add(trace::Track /*track*/, const trace::Span& /*span*/) override {}
};

/// A process that ends frees nothing where its GPU works no more. Whether it does not.
bool ends_at_once(const Device& device) {
  if (!device.is_stuck() && !simt::has_failed()) return false;
  simt::release_call_faults();
  simt::reset_emulation();
  return true;
}

/// What a run of one rank does not: copies more than pinned memory holds at once, both ways, and
/// adds up what other ranks have sent.
Status use_directly(Device& device) {
  TRAINYARD_ASSIGN(const auto block, device.memory().allocate(kPinnedBytes));
  std::byte* const data = block->bytes().data();
  for (const DType type : {DType::kInt64, DType::kFloat32}) {
    for (const bool overwrite : {true, false})
      device.kernels().accumulate({data + 64, type}, {data, type}, 8, overwrite);
  }
  std::vector<std::byte> bytes(static_cast<size_t>(kPinnedBytes), std::byte{7});
  device.copy({block->bytes().data(), bytes.data(), bytes.size()});
  device.copy({bytes.data(), block->bytes().data(), bytes.size()});
  Status done = device.wait();
  if (ends_at_once(device)) {
    EXPECT_FALSE(done);
  }
  return done;
}

Result<Trained> train(const api::EngineSpec& spec, Device& device, comm::Communicator& world,
                      int64_t steps) {
  if (steps > 1) TRAINYARD_TRY(use_directly(device));
  const comm::Groups groups = comm::Groups::of_data_ranks(world);
  NoSpans spans;
  TRAINYARD_ASSIGN(
      const auto engine,
      Engine::create(
          {.spec = spec, .device = &device, .groups = &groups, .observer = {.spans = &spans}}));
  auto trained = testing::train_engine(*engine, steps);
  if (ends_at_once(device)) {
    EXPECT_FALSE(trained) << "a GPU that works no more, and a run that did not notice";
  }
  return trained;
}

/// Of four steps the third is captured, and the fourth a launch of graphs. With one step the device
/// is used by an engine alone.
End run(const api::EngineSpec& spec, int64_t steps = 4) {
  End end;
  comm::testing::run_world(comm::TransportKind::kLocal, 1, [&](comm::Communicator& world) {
    const auto device = testing::cuda_device(spec, 0, 0, true, kDeadline);
    Result<Trained> trained =
        device ? train(spec, **device, world, steps) : Result<Trained>(device.error());
    if (!trained) end.error = trained.error().message;
    if (trained) end.trained = *std::move(trained);
    simt::release_call_faults();
    simt::reset_emulation();
  });
  return end;
}

class CallFaultsTest : public testing::CudaEngineTest {
 protected:
  void SetUp() override {
    CudaEngineTest::SetUp();
    simt::emulation_options().print_errors = false;
    testing_support::fake_cublaslt().split_k = {1, 1};  // plans are measured
  }
  void TearDown() override {
    simt::reset_call_faults();
    CudaEngineTest::TearDown();
  }
  static api::EngineSpec spec() { return tiny(small_spec(GetParam())); }
};
/// Under a sanitizer they take minutes.
std::vector<api::NumberFormat> unless_sanitized(const std::vector<api::NumberFormat>& formats) {
  return testing_support::kSanitized ? std::vector<api::NumberFormat>() : formats;
}
INSTANTIATE_TEST_SUITE_P(Precisions, CallFaultsTest,
                         ::testing::ValuesIn(unless_sanitized(testing::precisions())));
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CallFaultsTest);

/// Where another way leads on: another plan, the same bits.
bool may_recover(const std::string& function) {
  return testing::frees(function) || function == "cudaRuntimeGetVersion" ||
         function == "cublasLtMatmulAlgoConfigGetAttribute";
}

TEST_P(CallFaultsTest, AnErrorOfAnyCallEndsTheRunByName) {
  const End clean = run(spec());
  ASSERT_EQ(clean.error, "");
  const std::vector<CallCase> all = testing::call_cases({CallFault::kError});
  ASSERT_GT(all.size(), 500U);
  for (const CallCase& planted : testing::drawn("call errors", all, 5)) {
    SCOPED_TRACE(planted.name());
    testing::plant(planted, 0);
    const End end = run(spec());
    EXPECT_TRUE(call_faults().has_happened);
    if (end.error.empty()) {
      EXPECT_TRUE(may_recover(planted.function));
      EXPECT_EQ(end.trained.hash, clean.trained.hash);
    } else {
      EXPECT_FALSE(testing::frees(planted.function)) << end.error;
      EXPECT_THAT(end.error,
                  AnyOf(HasSubstr("unknown error"), HasSubstr("status 14"),
                        HasSubstr("no NVIDIA driver"), HasSubstr("cuBLASLt has no plan")));
    }
    if (testing::frees(planted.function)) testing::end_process();
    EXPECT_EQ(simt::live_allocations() + simt::live_host_allocations(), 0);
  }
}

/// Of a kernel or copy that fails while it runs, the next wait tells.
TEST_P(CallFaultsTest, AnErrorThatComesLaterEndsTheRun) {
  ASSERT_EQ(run(spec()).error, "");
  const std::vector<CallCase> all = testing::call_cases({CallFault::kLateError});
  ASSERT_GT(all.size(), 300U);
  for (const CallCase& planted : testing::drawn("late errors", all, 2)) {
    SCOPED_TRACE(planted.name());
    testing::plant(planted, 0);
    const End end = run(spec());
    EXPECT_TRUE(call_faults().has_happened);
    EXPECT_THAT(end.error, AnyOf(HasSubstr("unspecified launch failure"), HasSubstr("status 13")));
    EXPECT_EQ(simt::live_allocations() + simt::live_host_allocations(), 0);
  }
}

/// The host comes to the deadline of its wait, and frees nothing: that would wait for the kernel.
TEST_P(CallFaultsTest, WhatIsNeverDoneEndsTheRunAtItsDeadline) {
  ASSERT_EQ(run(spec()).error, "");
  const std::vector<CallCase> all = testing::call_cases({CallFault::kNeverDone});
  ASSERT_GT(all.size(), 300U);
  for (const CallCase& planted : testing::drawn("never done", all, 2)) {
    SCOPED_TRACE(planted.name());
    testing::plant(planted, 0);
    const End end = run(spec());
    EXPECT_TRUE(call_faults().has_happened);
    EXPECT_THAT(end.error, HasSubstr("within 0.2 s; a kernel hangs"));
    EXPECT_EQ(call_faults().waits_forever, "");
    EXPECT_EQ(simt::live_allocations() + simt::live_host_allocations(), 0);
  }
}

/// The first launch from each place that launches kernels in a step of `spec`, but not in one of
/// `known`.
std::vector<CallCase> launches_of_its_own(const api::EngineSpec& spec,
                                          const api::EngineSpec& known) {
  const auto places_of = [](const api::EngineSpec& of) {
    testing::plant({}, 0);
    call_faults().records_places = true;
    EXPECT_EQ(run(of, 1).error, "");
    return call_faults().places;
  };
  const auto known_places = places_of(known);
  std::vector<CallCase> all;
  for (const auto& [place, call] : places_of(spec)) {
    if (call.function == "cudaLaunchKernel" && !known_places.contains(place))
      all.push_back({CallFault::kError, call.function, call.at});
  }
  std::ranges::sort(all, {}, &CallCase::at);
  return all;
}

/// Kernels that the small model's run does not launch. A short run has those of sums in pieces in
/// fp32, and those of a Qwen 3 in bf16.
TEST_P(CallFaultsTest, KernelsOfOtherModelsEndTheRun) {
  testing_support::fake_cublaslt().split_k = {1};
  struct Model {
    api::EngineSpec spec;
    std::vector<std::string> operations;
  };
  std::vector<Model> models = {
      {testing::in_pieces(GetParam()), {"round_exact", "vocabulary_statistics"}},
      {tiny(testing::decoder_spec(GetParam())), {"rope", "gated_forward", "gated_backward"}}};
  const bool is_qwen3 = GetParam() == api::NumberFormat::kBF16;
  for (const char* const operation : {"head_norm_forward", "head_norm_backward"})
    if (is_qwen3) models[1].operations.emplace_back(operation);
  if (!testing_support::runs_everything()) models.erase(models.begin() + (is_qwen3 ? 0 : 1));
  for (const Model& model : models) {
    std::vector<CallCase> cases = launches_of_its_own(model.spec, spec());
    ASSERT_GT(cases.size(), model.operations.size());
    std::string errors;
    for (const auto& [fault, text] :
         {std::pair(CallFault::kError, "cudaErrorUnknown: unknown error"),
          std::pair(CallFault::kLateError, "unspecified launch failure"),
          std::pair(CallFault::kNeverDone, "within 0.2 s; a kernel hangs")}) {
      for (CallCase& one : cases)
        one.fault = fault;
      for (const CallCase& planted : testing::drawn(text, cases, 2)) {
        SCOPED_TRACE(planted.name());
        testing::plant(planted, 0);
        const End end = run(model.spec, 1);
        EXPECT_TRUE(call_faults().has_happened);
        EXPECT_THAT(end.error, HasSubstr(text));
        EXPECT_EQ(call_faults().waits_forever, "");
        EXPECT_EQ(simt::live_allocations() + simt::live_host_allocations(), 0);
        errors += end.error;
      }
    }
    if (!testing_support::runs_everything()) continue;
    for (const std::string& operation : model.operations)
      EXPECT_THAT(errors, HasSubstr("CUDA: " + operation + ": cudaErrorUnknown"));
  }
}

/// Of what another thread than the engine's calls, and of what a run meets in few places alone.
class DeviceFaultsTest : public CallFaultsTest {
 protected:
  static void with_device(const std::function<void(Device&)>& use) {
    const auto device = testing::cuda_device(spec(), 0, 0, true, kDeadline);
    ASSERT_TRUE(device) << device.error().message;
    use(**device);
    simt::release_call_faults();
    simt::reset_emulation();
  }
  static void expect_error(const Status& status, const std::string& text) {
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().message, "CUDA: " + text + ": cudaErrorUnknown: unknown error");
    EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "left behind for whoever asks next";
  }
};
INSTANTIATE_TEST_SUITE_P(Precision, DeviceFaultsTest, ::testing::Values(api::NumberFormat::kBF16));

TEST_P(DeviceFaultsTest, AnErrorOfACopyStreamIsNamed) {
  with_device([](Device& device) {
    const auto block = *device.memory().allocate(64);
    const auto host = *device.host_memory().allocate(64);
    const CopyRange range{host->bytes().data(), block->bytes().data(), 64};
    const auto copies = *device.copy_stream();
    const auto cleared = *copies->now();
    ASSERT_TRUE(copies->after(*cleared));
    const auto all = [&]() -> Status {
      TRAINYARD_ASSIGN(const auto moment, copies->now());
      TRAINYARD_TRY(copies->after(*moment));
      return copies->copy(std::span(&range, 1), {});
    };
    EXPECT_TRUE(all());
    for (const auto& [function, text] :
         {std::pair("cudaEventCreateWithFlags", "making an event"),
          std::pair("cudaEventRecord", "recording an event"),
          std::pair("cudaSetDevice", "choosing the GPU"),
          std::pair("cudaStreamWaitEvent", "waiting for an event"),
          std::pair("cudaMemcpyAsync", "copy for a collective"),
          std::pair("cudaStreamQuery", "a kernel or copy before a collective")}) {
      testing::plant({CallFault::kError, function}, 0);
      expect_error(all(), text);
    }
    testing::plant({CallFault::kError, "cudaStreamCreateWithFlags"}, 0);
    expect_error(device.copy_stream().error(), "making a stream of copies");
    simt::reset_call_faults();
    EXPECT_TRUE(all());
    EXPECT_TRUE(device.wait());
  });
}

TEST_P(DeviceFaultsTest, ACopyStreamWaitsNoLongerThanItsDeviceAndNotAfterAStop) {
  if (simt::has_race_checker()) return;  // it does not know what a released copy comes after
  with_device([](Device& device) {
    const auto block = *device.memory().allocate(64);
    const auto host = *device.host_memory().allocate(64);
    const CopyRange range{host->bytes().data(), block->bytes().data(), 64};
    const auto copies = *device.copy_stream();
    testing::plant({CallFault::kNeverDone, "cudaMemcpyAsync"}, 0);
    std::stop_source stopped;
    stopped.request_stop();
    const Status given_up = copies->copy(std::span(&range, 1), stopped.get_token());
    EXPECT_THAT(given_up.error().message, HasSubstr("was abandoned"));
    EXPECT_EQ(call_faults().calls.at("cudaStreamQuery"), 1);  // it does not wait
    EXPECT_FALSE(device.is_stuck());
    const Status late = copies->copy({}, {});
    EXPECT_EQ(late.error().code, ErrorCode::kDeadline);
    EXPECT_THAT(late.error().message, HasSubstr("not reached a collective within 0.2 s"));
    EXPECT_TRUE(device.is_stuck());
    EXPECT_TRUE(device.wait());
    EXPECT_TRUE(device.is_stuck()) << "its own stream is done, the other one is not";
    simt::release_call_faults();
    EXPECT_TRUE(copies->copy({}, {}));
    EXPECT_FALSE(device.is_stuck());
  });
}

TEST_P(DeviceFaultsTest, AnErrorOfASideStreamIsNamed) {
  with_device([](Device& device) {
    const auto side = *device.side_stream();
    const auto all = [&]() -> Status {
      TRAINYARD_TRY(side->enter());
      TRAINYARD_ASSIGN(const auto before, side->now());
      TRAINYARD_TRY(side->after(*before));
      TRAINYARD_ASSIGN(const auto moment, side->device_now());
      TRAINYARD_TRY(side->after(*moment));
      TRAINYARD_TRY(side->device_after(*before));
      return moment->passed() ? Status() : moment->passed().error();
    };
    EXPECT_TRUE(all());
    for (const auto& [function, at, text] :
         {std::tuple("cudaSetDevice", 0, "choosing the GPU"),
          std::tuple("cudaEventCreateWithFlags", 0, "making an event"),
          std::tuple("cudaEventRecord", 1, "recording an event"),
          std::tuple("cudaStreamWaitEvent", 0, "waiting for an event"),
          std::tuple("cudaStreamWaitEvent", 1, "waiting for an event"),
          std::tuple("cudaStreamWaitEvent", 2, "waiting for an event")}) {
      testing::plant({CallFault::kError, function, at}, 0);
      expect_error(all(), text);
    }
    testing::plant({CallFault::kError, "cudaStreamCreateWithPriority"}, 0);
    expect_error(device.side_stream().error(), "making a stream of collectives");
    testing::plant({CallFault::kNeverDone, "cudaEventRecord"}, 0);
    const auto never = *side->now();
    EXPECT_FALSE(*never->passed());
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
    testing::plant({CallFault::kError, "cudaEventQuery"}, 0);
    const auto moment = *side->now();
    const Result<bool> asked = moment->passed();
    expect_error(asked ? Status() : asked.error(), "a kernel or copy before a collective");
  });
}

TEST_P(DeviceFaultsTest, AnErrorOfASpanIsNamed) {
  for (const auto& [function, at, text] :
       {std::tuple("cudaEventCreateWithFlags", 0, "recording an event"),
        std::tuple("cudaEventCreateWithFlags", 2, "recording an event"),
        std::tuple("cudaEventRecord", 0, "recording an event"),
        std::tuple("cudaEventRecord", 1, "recording an event"),
        std::tuple("cudaEventRecord", 2, "recording an event"),
        std::tuple("cudaEventElapsedTime", 0, "reading the times of events"),
        std::tuple("cudaEventElapsedTime", 1, "reading the times of events")}) {
    SCOPED_TRACE(std::string(function) + " #" + std::to_string(at));
    with_device([&, function = function, at = at, text = text](Device& device) {
      NoSpans spans;
      const auto block = *device.memory().allocate(64);
      device.trace_to(&spans);
      testing::plant({CallFault::kError, function, at}, 0);
      device.begin_span({});
      device.kernels().clear(block->bytes().data(), 64);
      device.end_span();
      expect_error(device.wait(), text);
      device.trace_to(nullptr);
    });
  }
}

/// A copy that waits for room, in the memory that it goes through.
TEST_P(DeviceFaultsTest, ALargeCopyWaitsNoLongerThanItsDevice) {
  for (const bool to_gpu : {true, false}) {
    with_device([&](Device& device) {
      const auto block = *device.memory().allocate(kPinnedBytes);
      std::vector<std::byte> bytes(static_cast<size_t>(kPinnedBytes));
      testing::plant({CallFault::kNeverDone, "cudaMemcpyAsync"}, 0);
      std::byte* const there = block->bytes().data();
      device.copy(to_gpu ? CopyRange{there, bytes.data(), bytes.size()}
                         : CopyRange{bytes.data(), there, bytes.size()});
      ASSERT_FALSE(device.status());
      EXPECT_EQ(device.status().error().code, ErrorCode::kDeadline);
      EXPECT_TRUE(device.is_stuck());
    });
  }
}

TEST_P(DeviceFaultsTest, ErrorsOfProductsThatAreMeasuredCount) {
  for (const char* const function :
       {"cudaEventElapsedTime", "cudaEventRecord", "cudaEventQuery", "cudaEventCreateWithFlags"}) {
    with_device([&](Device& device) {
      const auto block = *device.memory().allocate(device.kernels().scratch_bytes() + 4096);
      device.kernels().set_scratch(block->bytes().subspan(4096));
      auto* const data = block->bytes().data();
      testing::plant({CallFault::kError, function}, 0);
      kernels::GemmParams p{.m = 8, .n = 8, .k = 8};
      p.lda = p.ldb = p.ldc = 8;
      p.a = data;
      p.b = data + 1024;
      p.c = data + 2048;
      device.kernels().gemm(p);
      ASSERT_FALSE(device.status()) << function;
      EXPECT_THAT(device.status().error().message, HasSubstr("unknown error"));
    });
  }
}

/// What fails before the first instruction.
TEST_P(DeviceFaultsTest, AnErrorOfFreshWeightsIsNoInstructions) {
  int64_t casts = 0;
  with_gpu(spec(), [&](Engine& engine) {
    testing::plant({}, 0);
    ASSERT_TRUE(engine.initialize());
    casts = call_faults().calls["cudaLaunchKernel"];
  });
  ASSERT_GT(casts, 1);
  for (const int64_t at : {int64_t{0}, casts - 1}) {  // nothing waits for the last
    with_gpu(spec(), [&](Engine& engine) {
      testing::plant({CallFault::kError, "cudaLaunchKernel", at}, 0);
      const Status made = engine.initialize();
      ASSERT_FALSE(made) << at;
      EXPECT_THAT(made.error().message, HasSubstr("CUDA: cast: cudaErrorUnknown"));
    });
  }
  with_gpu(spec(), [](Engine& engine) {
    ASSERT_TRUE(engine.initialize());
    const auto block = *engine.device().memory().allocate(8);
    testing::plant({CallFault::kError, "cudaMemsetAsync"}, 0);
    engine.device().kernels().clear(block->bytes().data(), 8);
    const auto stream = testing::stream_of(engine.spec());
    matrix::StreamBatches batches(stream, engine.spec(), 1, 0);
    const auto report = engine.step(batches);
    ASSERT_FALSE(report);
    EXPECT_EQ(report.error().message.find("instruction"), std::string::npos);
    EXPECT_THAT(report.error().message, HasSubstr("CUDA: clear: cudaErrorUnknown"));
  });
}

/// To fp32, which no run does.
void cast_directly() {
  cudaStream_t stream = nullptr;
  void* data = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&data, 64), cudaSuccess);
  EXPECT_EQ(cudaMemsetAsync(data, 0, 64, stream), cudaSuccess);
  auto* const bytes = static_cast<std::byte*>(data);
  for (const DType from : {DType::kFloat32, DType::kBFloat16})
    EXPECT_EQ(kernels::cuda::cast({bytes, from}, {bytes + 32, DType::kFloat32}, 8, stream),
              cudaSuccess);
  EXPECT_EQ(cudaFree(data), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

/// So that a call which is added has its turn, too: tools/cuda_calls lists them.
TEST_P(CallFaultsTest, RunsMakeEveryCallOfTheSources) {
  if (!testing::has_listed_lines()) return;
  if (GetParam() == api::NumberFormat::kBF16) return;  // both are run here
  call_faults().records_places = true;
  for (const api::NumberFormat format : {api::NumberFormat::kFP32, api::NumberFormat::kBF16}) {
    api::EngineSpec with_dropout = tiny(small_spec(format));
    with_dropout.parallelism.recompute = api::Recompute::kSelective;
    if (format == api::NumberFormat::kFP32)
      with_dropout.batch.global_sequences = with_dropout.batch.micro_sequences = 8;  // many rows
    EXPECT_EQ(run(with_dropout, 1).error, "");
    EXPECT_EQ(run(tiny(testing::decoder_spec(format)), 1).error, "");
  }
  EXPECT_EQ(run(testing::in_pieces(api::NumberFormat::kFP32), 1).error, "");
  testing_support::fake_cublaslt().split_k = {4, 3};  // a plan is made of one that splits
  EXPECT_EQ(run(spec()).error, "");
  simt::emulation_options().memory_bytes = 1 << 20;
  EXPECT_THAT(run(spec()).error, HasSubstr("GPU memory"));
  simt::emulation_options().memory_bytes = 1 << 30;
  cast_directly();
  with_device(spec(), [](Device& device) {  // which tensor ranks alone do
    const auto block = *device.memory().allocate(16);
    device.kernels().copy(block->bytes().data(), block->bytes().data() + 8, 8);
    EXPECT_TRUE(device.wait());
  });
  with_device(spec(), [](Device& device) {  // which context ranks alone do
    const auto block = *device.memory().allocate(32);
    const int64_t columns = 4;
    dynamic_cast<kernels::HeadPartCopies&>(device.kernels())
        .copy({.rows = 1,
               .segments = {&columns, 1},
               .whole = block->bytes().data(),
               .parts = block->bytes().data() + 16});
    EXPECT_TRUE(device.wait());
  });
  EXPECT_EQ(
      testing::calls_not_made({"kernels/cuda/", "worker/device/cuda_device.cc",
                               "worker/device/cuda_kernel_set.cc", "worker/device/cuda_products.cc",
                               "worker/device/cuda_repeats.cc", "worker/device/cuda_spans.cc",
                               "worker/device/cuda_stream.cc"}),
      "");
}

}  // namespace
}  // namespace trainyard::engine

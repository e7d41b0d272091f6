// Traces of a lone GPU: the times at which it came to instructions, which the host has called for
// long before.

#include <cstdint>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/numeric/cuda_engine/one_rank.h"
#include "tests/support/exact.h"
#include "worker/engine/activity.h"
#include "worker/job/engine_state.h"
#include "worker/matrix/world.h"
#include "worker/rank/stage_meter.h"

namespace trainyard::engine {
namespace {

using testing::small_spec;
using testing::stream_of;
using testing::tiny;

/// Rounding of times in fp32, of events that are up to two minutes apart.
constexpr int64_t kRoundingNs = 10'000;

class Collected final : public trace::SpanSink {
 public:
  void add(trace::Track track, const trace::Span& span) override { all.emplace_back(track, span); }
  std::vector<trace::Span> of(trace::Track track, int64_t step = -1) const {
    std::vector<trace::Span> found;
    for (const auto& [on, span] : all) {
      if (on == track && span.step == step) found.push_back(span);
    }
    return found;
  }
  std::vector<std::pair<trace::Track, trace::Span>> all;
};

/// The emulated GPU works when somebody waits for it, and now and then.
class CudaTraceTest : public testing::CudaEngineTest {
 protected:
  void SetUp() override {
    CudaEngineTest::SetUp();
    simt::emulation_options().seed = 5;
  }
  static void clear(Device& device, MemoryBlock& block) {
    device.kernels().clear(block.bytes().data(), std::ssize(block.bytes()));
  }
};
INSTANTIATE_TEST_SUITE_P(Precision, CudaTraceTest, ::testing::Values(api::NumberFormat::kBF16));

/// A step that fails ends a part whether or not one has begun.
TEST_P(CudaTraceTest, ASpanOutsidePartsIsToldOfAfterAFailure) {
  with_device(tiny(small_spec(GetParam())), [](Device& device) {
    Collected spans;
    const auto block = *device.memory().allocate(64);
    device.trace_to(&spans);
    device.begin_span({.instruction = 1});
    clear(device, *block);
    device.end_span();
    device.end_part(false);
    ASSERT_TRUE(device.wait());
    EXPECT_EQ(spans.of(trace::Track::kDevice).size(), 1U);
  });
}

TEST_P(CudaTraceTest, ASpanEndsWhenTheGpuIsDone) {
  with_device(tiny(small_spec(GetParam())), [](Device& device) {
    Collected spans;
    const auto block = *device.memory().allocate(64);
    const auto side = *device.side_stream();
    const auto gate = simt::make_gate();
    ASSERT_EQ(simt::enqueue_work(
                  static_cast<cudaStream_t>(side->handle()), "the test", [] {}, gate),
              cudaSuccess);
    const auto opened = *side->now();
    device.trace_to(&spans);
    device.begin_span({.instruction = 1});
    clear(device, *block);
    device.end_span();
    device.begin_span({.instruction = 2});
    ASSERT_TRUE(side->device_after(*opened));
    clear(device, *block);
    device.end_span();
    EXPECT_TRUE(spans.all.empty()) << "nobody has waited";
    const int64_t called_ns = trace::monotonic_ns();
    int64_t opened_ns = called_ns;
    while (opened_ns < called_ns + 100 * kRoundingNs)
      opened_ns = trace::monotonic_ns();
    simt::open_gate(*gate);
    ASSERT_TRUE(device.wait());
    const std::vector<trace::Span> found = spans.of(trace::Track::kDevice);
    ASSERT_EQ(found.size(), 2U);
    EXPECT_EQ(found[0].instruction, 1);
    EXPECT_EQ(found[1].instruction, 2);
    EXPECT_GE(found[0].end_ns, found[0].begin_ns);
    EXPECT_GE(found[1].begin_ns, found[0].end_ns - kRoundingNs);
    EXPECT_GE(found[1].end_ns, opened_ns - kRoundingNs) << "the host had called for it before";
    EXPECT_LE(found[1].end_ns, trace::monotonic_ns());
    ASSERT_TRUE(device.wait());
    EXPECT_EQ(spans.all.size(), 2U);
    device.trace_to(nullptr);
    device.begin_span({.instruction = 3});
    clear(device, *block);
    device.end_span();
    ASSERT_TRUE(device.wait());
    EXPECT_EQ(spans.all.size(), 2U);
  });
}

/// Plain ones, and from the third on graphs, which are launched when the host comes to the end of
/// their part.
TEST_P(CudaTraceTest, EveryInstructionOfAStepHasItsTimeOnTheGpu) {
  constexpr int64_t kSteps = 4;
  const api::EngineSpec spec = tiny(small_spec(GetParam()));
  const testing::Trained plain = on_gpu(spec, kSteps);
  const uint64_t launches_before = simt::emulation_counters().graph_launches;
  Collected spans;
  with_gpu(spec, [&](Engine& engine) {
    engine.observer().spans = &spans;
    const auto trained = testing::train_engine(engine, kSteps);
    ASSERT_TRUE(trained) << trained.error().message;
    EXPECT_TRUE(testing_support::same_hash(trained->hash, plain.hash));
    EXPECT_EQ(trained->losses, plain.losses);
    for (int64_t step = 0; step < kSteps; ++step) {
      SCOPED_TRACE(step);
      std::vector<trace::Span> by_thread;
      for (const trace::Span& span : spans.of(trace::Track::kStep, step)) {
        const bool is_instruction =
            span.instruction >= 0 && span.activity < trace::Activity::kDataWait;
        if (is_instruction) by_thread.push_back(span);
      }
      const std::vector<trace::Span> by_gpu = spans.of(trace::Track::kDevice, step);
      ASSERT_EQ(by_gpu.size(), by_thread.size());
      ASSERT_EQ(by_gpu.size(), engine.program().size());
      size_t control = 0;  // the instruction in which the host waits
      while (by_thread[control].activity != trace::Activity::kReduceControl)
        ++control;
      for (size_t i = 0; i < by_gpu.size(); ++i) {
        EXPECT_EQ(by_gpu[i].instruction, static_cast<int>(i));
        EXPECT_EQ(by_gpu[i].activity, by_thread[i].activity);
        EXPECT_EQ(by_gpu[i].micro_batch, by_thread[i].micro_batch);
        EXPECT_EQ(by_gpu[i].layer, by_thread[i].layer);
        EXPECT_EQ(by_gpu[i].unit, by_thread[i].unit);
        EXPECT_GE(by_gpu[i].end_ns, by_gpu[i].begin_ns);
        if (i > 0) {
          EXPECT_GE(by_gpu[i].begin_ns, by_gpu[i - 1].end_ns - kRoundingNs);
        }
        if (by_gpu[i].activity == trace::Activity::kForward) {
          EXPECT_GT(by_gpu[i].end_ns, by_gpu[i].begin_ns);
        }
        if (step >= 2 && i < control) {
          EXPECT_GE(by_gpu[i].begin_ns, by_thread[control].begin_ns - kRoundingNs);
          EXPECT_LE(by_gpu[i].end_ns, by_thread[control].end_ns + kRoundingNs);
        }
      }
    }
    EXPECT_EQ(simt::emulation_counters().graph_launches - launches_before, 4U);
    engine.observer().spans = nullptr;
    const size_t told = spans.all.size();
    const auto stream = stream_of(spec);
    matrix::StreamBatches batches(stream, spec, 1, 0);
    ASSERT_TRUE(engine.step(batches));
    ASSERT_TRUE(engine.device().wait());
    EXPECT_EQ(spans.all.size(), told);
  });
}

/// Steps are always measured for metrics.
TEST_P(CudaTraceTest, WithoutATraceNoEventsAreRecordedForIt) {
  const api::EngineSpec spec = tiny(small_spec(GetParam()));
  on_gpu(spec, 1);
  const int64_t recorded = simt::call_faults().calls["cudaEventRecord"];
  simt::reset_call_faults();
  StageMeter meter;
  trace::SpanFan spans;
  spans.connect(&meter);
  with_gpu(spec, [&](Engine& engine) {
    engine.observer().spans = &spans;
    ASSERT_TRUE(testing::train_engine(engine, 1));
  });
  EXPECT_EQ(simt::call_faults().calls["cudaEventElapsedTime"], 0);
  EXPECT_EQ(simt::call_faults().calls["cudaEventRecord"], recorded) << "as without a meter";
  Collected all;
  spans.connect(&all);
  EXPECT_TRUE(spans.wants(trace::Track::kDevice));
}

}  // namespace
}  // namespace trainyard::engine

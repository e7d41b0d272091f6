// The engine on an emulated GPU: the same step programs, the same interpreter, kernels of
// kernels/cuda/ and a double of cuBLASLt.

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/numeric/cuda_engine/call_faults.h"
#include "tests/numeric/cuda_engine/one_rank.h"
#include "tests/support/exact.h"
#include "tests/support/extent.h"
#include "tests/unit/worker/checkpoint/job_directory.h"
#include "worker/checkpoint/file_system.h"
#include "worker/checkpoint/reader.h"
#include "worker/device/cuda_plan.h"
#include "worker/job/engine_state.h"
#include "worker/job/job_plan.h"
#include "worker/job/same_run.h"
#include "worker/matrix/world.h"
#include "worker/sample/trained_model.h"
#include "worker/state/units.h"

namespace trainyard::engine {
namespace {

using ::testing::HasSubstr;

using testing::CudaEngineTest;
using testing::decoder_spec;
using testing::is_watched;
using testing::kUnitBytes;
using testing::small_spec;
using testing::smaller_if_watched;
using testing::stream_of;
using testing::Trained;

INSTANTIATE_TEST_SUITE_P(Precisions, CudaEngineTest, ::testing::ValuesIn(testing::precisions()));

TEST_P(CudaEngineTest, TrainsToOneStateWhateverTheMicroBatches) {
  const bool is_long = testing_support::runs_everything() && !is_watched();
  const int64_t steps = is_long ? 4 : 2;
  api::EngineSpec spec = smaller_if_watched(small_spec(GetParam()));
  const Trained first = on_gpu(spec, steps);
  std::vector<int64_t> others = {8};
  if (is_long) others = {2, 4, 6, 8};
  for (const int64_t micro : others) {
    // Another order of what streams and threads leave open, too.
    simt::emulation_options().seed = static_cast<uint64_t>(micro);
    spec.batch.micro_sequences = micro;
    const Trained other = on_gpu(spec, steps);
    EXPECT_TRUE(testing_support::same_hash(other.hash, first.hash)) << micro;
    EXPECT_EQ(first.losses, other.losses) << micro;
    EXPECT_EQ(first.norms, other.norms) << micro;
    EXPECT_EQ(first.held_out, other.held_out) << micro;
  }
  const Trained expected = on_processor(spec, steps);
  ASSERT_EQ(expected.losses.size(), first.losses.size());
  for (size_t step = 0; step < first.losses.size(); ++step)
    EXPECT_NEAR(expected.losses[step], first.losses[step], 0.02) << step;
  EXPECT_NEAR(expected.norms[0], first.norms[0], 0.02 * expected.norms[0]);
  EXPECT_NEAR(expected.held_out, first.held_out, 0.02);
  EXPECT_LT(first.losses.back(), first.losses.front());
}

/// How far losses of the two devices may be apart.
double bound_of(api::NumberFormat compute) {
  return compute == api::NumberFormat::kFP32 ? 1e-4 : 0.02;
}

TEST_P(CudaEngineTest, LossesStayBesideThoseOfProcessors) {
  const api::EngineSpec spec = testing::tiny(small_spec(GetParam()), 3);
  const int64_t steps = is_watched() ? 2 : 20;
  const Trained expected = on_processor(spec, steps);
  const Trained found = on_gpu(spec, steps);
  ASSERT_EQ(expected.losses.size(), found.losses.size());
  for (size_t step = 0; step < found.losses.size(); ++step)
    EXPECT_NEAR(expected.losses[step], found.losses[step], bound_of(GetParam())) << step;
  EXPECT_NEAR(expected.held_out, found.held_out, bound_of(GetParam()));
}

TEST_P(CudaEngineTest, IsolatedDocumentsTrainToOneStateWhateverTheMicroBatches) {
  api::EngineSpec spec = smaller_if_watched(small_spec(GetParam()));
  const Trained joined = on_gpu(spec, 1);
  spec.data.documents = api::Documents::kIsolate;
  const Trained first = on_gpu(spec, 1);
  spec.batch.micro_sequences = 8;
  const Trained other = on_gpu(spec, 1);
  EXPECT_TRUE(testing_support::same_hash(other.hash, first.hash));
  EXPECT_EQ(first.losses, other.losses);
  EXPECT_NEAR(on_processor(spec, 1).held_out, first.held_out, 0.02);
  EXPECT_NE(joined.losses, first.losses);
}

/// With all that Llama's kind has beside GPT-2.
TEST_P(CudaEngineTest, DecodersTrainToOneStateWhateverTheMicroBatches) {
  api::EngineSpec spec = smaller_if_watched(decoder_spec(GetParam()));
  const Trained first = on_gpu(spec, 2);
  spec.batch.micro_sequences = 8;
  simt::emulation_options().seed = 5;
  const Trained other = on_gpu(spec, 2);
  EXPECT_TRUE(testing_support::same_hash(other.hash, first.hash));
  EXPECT_EQ(first.losses, other.losses);
  EXPECT_EQ(first.norms, other.norms);
  const Trained expected = on_processor(spec, 2);
  for (size_t step = 0; step < first.losses.size(); ++step)
    EXPECT_NEAR(expected.losses[step], first.losses[step], 0.02) << step;
  EXPECT_NEAR(expected.norms[0], first.norms[0], 0.02 * expected.norms[0]);
  EXPECT_NEAR(expected.held_out, first.held_out, 0.02);
  EXPECT_LT(first.losses.back(), first.losses.front());
}

/// Neither plain steps nor those that are captured and launched as graphs.
TEST_P(CudaEngineTest, StepsAllocateNothing) {
  if (is_watched()) return;  // other builds count the calls
  for (const bool graphs : {true, false}) {
    const api::EngineSpec spec =
        graphs ? testing::tiny(small_spec(GetParam())) : testing::tiny(decoder_spec(GetParam()), 3);
    simt::reset_call_faults();
    const auto train = [&](Engine& engine) {
      ASSERT_TRUE(engine.initialize());
      const auto stream = stream_of(spec);
      matrix::StreamBatches batches(stream, spec, 1, 0);
      ASSERT_TRUE(engine.step(batches));
      const auto before = testing::calls_that_allocate();
      EXPECT_GT(before.at("cudaMalloc"), 0);
      EXPECT_GT(before.at("cudaMallocHost"), 0);
      for (int64_t step = 1; step < (graphs ? 4 : 2); ++step) {
        ASSERT_TRUE(engine.step(batches));
        EXPECT_EQ(testing::calls_that_allocate(), before) << step;
      }
    };
    with_engine(spec, true, train, graphs);
  }
}

/// In either precision, watched or not: what is planned too small is written beyond its end.
class CudaPlanTest : public CudaEngineTest {};
INSTANTIATE_TEST_SUITE_P(Precisions, CudaPlanTest,
                         ::testing::Values(api::NumberFormat::kFP32, api::NumberFormat::kBF16));

TEST_P(CudaPlanTest, AllocatesAndComputesWhatThePlanSays) {
  const api::EngineSpec spec =
      GetParam() == api::NumberFormat::kBF16 ? decoder_spec(GetParam()) : small_spec(GetParam());
  const auto plan = MemoryPlan::make({.spec = spec,
                                      .mesh = {},
                                      .formats = cuda_formats(compute_type(spec.precision)),
                                      .unit_bytes = kUnitBytes});
  ASSERT_TRUE(plan) << plan.error().message;
  with_gpu(spec, [&](Engine& engine) {
    EXPECT_EQ(plan->gpu_bytes(0), simt::allocated_bytes());
    EXPECT_TRUE(engine.initialize());
    const auto stream = stream_of(spec);
    matrix::StreamBatches batches(stream, spec, 1, 0);
    ASSERT_TRUE(engine.step(batches));
    EXPECT_EQ(plan->gpu_bytes(0), simt::allocated_bytes());
    const kernels::KernelCounters counters = engine.kernel_counters();
    EXPECT_EQ(plan->step_of(0).flops, counters.gemm_flops + counters.attention_flops);
  });
  EXPECT_EQ(plan->ranks()[0].total() - plan->gpu_bytes(0) + kPinnedBytes, plan->host_bytes(0));
  const auto small = check_gpu_memory(*plan, spec, plan->gpu_bytes(0));
  ASSERT_FALSE(small);
  EXPECT_THAT(small.error().message, HasSubstr("kernel scratch 6"));
  EXPECT_TRUE(check_gpu_memory(*plan, spec, plan->gpu_bytes(0) + kGpuContextBytes));
}

/// A checkpoint of either device is the other's state to the bit, and training goes on from it.
TEST_P(CudaEngineTest, CheckpointsMoveBetweenDevices) {
  const api::EngineSpec spec = smaller_if_watched(small_spec(GetParam()));
  for (const bool from_gpu : {true, false}) {
    checkpoint::PosixFileSystem files;
    checkpoint::testing::JobDirectory job;
    std::string saved;
    double before = 0;
    with_engine(spec, from_gpu, [&](Engine& engine) {
      EXPECT_TRUE(engine.initialize());
      const auto stream = stream_of(spec);
      matrix::StreamBatches batches(stream, spec, 1, 0);
      ASSERT_TRUE(engine.step(batches));
      EngineState state(engine);
      saved = to_hex(state.hash().value());
      checkpoint::testing::save_first(files, job, *state.snapshot());
      const auto next = engine.step(batches);
      ASSERT_TRUE(next) << next.error().message;
      before = next->loss;
    });
    const auto reader = checkpoint::open_newest_good(files, job.root(), std::nullopt,
                                                     checkpoint::Verify::kAll, nullptr);
    ASSERT_TRUE(reader) << reader.error().message;
    EXPECT_TRUE(TrainedModel::load(**reader, {.threads = 1}));  // on processors, whoever trained
    with_engine(spec, !from_gpu, [&](Engine& engine) {
      const Status same = check_same_run(**reader, engine.spec(), "");
      EXPECT_TRUE(same) << same.error().message;
      EXPECT_THAT(doubt_of_device(**reader, engine.spec()),
                  HasSubstr(from_gpu ? "was on a GPU, from here on it is on processors"
                                     : "was on processors, from here on it is on a GPU"));
      EngineState state(engine);
      const Status loaded = state.load(**reader);
      ASSERT_TRUE(loaded) << loaded.error().message;
      EXPECT_EQ(saved, to_hex(state.hash().value()));
      const auto stream = stream_of(spec);
      matrix::StreamBatches batches(stream, spec, 1, 0);
      batches.start_step(1);
      const auto next = engine.step(batches);
      ASSERT_TRUE(next) << next.error().message;
      EXPECT_NEAR(before, next->loss, bound_of(GetParam()));
    });
  }
}

}  // namespace
}  // namespace trainyard::engine

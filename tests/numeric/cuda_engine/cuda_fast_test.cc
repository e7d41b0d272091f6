// Fast numerics on an emulated GPU: gradients are summed in fp32, and run for run to the same bits.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/numeric/cuda_engine/one_rank.h"
#include "tests/support/exact.h"
#include "tests/support/extent.h"
#include "tests/unit/worker/checkpoint/job_directory.h"
#include "tests/unit/worker/checkpoint/memory_file_system.h"
#include "worker/checkpoint/reader.h"
#include "worker/device/cuda_plan.h"
#include "worker/job/job_plan.h"
#include "worker/job/same_run.h"
#include "worker/sample/trained_model.h"
#include "worker/state/units.h"

namespace trainyard::engine {
namespace {

using ::testing::Contains;
using testing::decoder_spec;
using ::testing::HasSubstr;
using testing::kUnitBytes;
using testing::small_spec;
using testing::stream_of;
using testing::Trained;
using testing_support::fake_cublaslt;

api::EngineSpec fast(api::EngineSpec spec) {
  spec.numerics = {.mode = api::NumericsMode::kFast};
  return spec;
}
/// A step of two micro-batches that takes little time.
api::EngineSpec two_micro_batches(const api::EngineSpec& spec) { return testing::tiny(spec, 3); }

/// What host code may see of a device's states: all values of that kind, in the order of snapshots.
std::vector<float> states_of(Engine& engine, checkpoint::TensorKind kind) {
  EngineState state(engine);
  const auto snapshot = state.snapshot();
  EXPECT_TRUE(snapshot);
  std::vector<float> all;
  for (const checkpoint::TensorSlice& slice : snapshot->slices) {
    if (slice.kind != kind) continue;
    const size_t begin = all.size();
    all.resize(begin + slice.data.size() / sizeof(float));
    std::memcpy(all.data() + begin, slice.data.data(), slice.data.size());
  }
  EXPECT_FALSE(all.empty());
  return all;
}

class CudaFastTest : public testing::CudaEngineTest {};
INSTANTIATE_TEST_SUITE_P(Precisions, CudaFastTest, ::testing::ValuesIn(testing::precisions()));

/// With and without graphs, and whatever order streams and threads leave open.
TEST_P(CudaFastTest, EveryRunHasTheSameBitsAndCanonicalLosses) {
  const bool is_long = testing_support::runs_everything() && !testing::is_watched();
  const int64_t steps = is_long ? 20 : 3;
  std::vector<api::EngineSpec> specs;
  const bool is_fp32 = GetParam() == api::NumberFormat::kFP32;
  if (is_long || is_fp32) specs.push_back(two_micro_batches(small_spec(GetParam())));
  if (is_long || !is_fp32) specs.push_back(two_micro_batches(decoder_spec(GetParam())));
  for (const api::EngineSpec& spec : specs) {
    const Trained first = on_gpu(fast(spec), steps);
    if (testing::is_watched()) continue;
    const Trained canonical = on_gpu(spec, steps);
    simt::emulation_options().seed = 11;
    Trained plain;
    with_engine(
        fast(spec), true, [&](Engine& engine) { plain = *testing::train_engine(engine, steps); },
        false);
    simt::emulation_options().seed = 0;
    EXPECT_TRUE(testing_support::same_hash(plain.hash, first.hash));
    EXPECT_EQ(plain.losses, first.losses);
    EXPECT_EQ(plain.norms, first.norms);
    EXPECT_EQ(plain.held_out, first.held_out);
    EXPECT_NE(canonical.hash, first.hash) << "fp32 sums are not exact";
    for (size_t step = 0; step < first.losses.size(); ++step) {
      EXPECT_NEAR(canonical.losses[step], first.losses[step], 0.02) << step;
      EXPECT_NEAR(canonical.norms[step], first.norms[step], 0.02 * canonical.norms[step]) << step;
    }
    EXPECT_NEAR(canonical.norms[0], first.norms[0], 1e-5 * canonical.norms[0]);
    EXPECT_NEAR(canonical.held_out, first.held_out, 0.02);
    EXPECT_LT(first.losses.back(), first.losses.front());
  }
}

TEST_P(CudaFastTest, AllocatesWhatThePlanSaysWithHalfTheBytesOfExactSums) {
  const api::EngineSpec spec = fast(two_micro_batches(decoder_spec(GetParam())));
  const auto planned = [&](DType sums) {
    return *MemoryPlan::make({.spec = spec,
                              .mesh = {},
                              .formats = cuda_formats(compute_type(spec.precision), sums),
                              .unit_bytes = kUnitBytes});
  };
  const MemoryPlan plan = planned(DType::kFloat32);
  with_gpu(spec, [&](Engine& engine) {
    EXPECT_EQ(plan.gpu_bytes(0), simt::allocated_bytes());
    EXPECT_EQ(plan.ranks()[0].of(MemoryPurpose::kGradientSums), engine.memory().sums);
    EXPECT_TRUE(engine.initialize());
    const auto stream = stream_of(spec);
    matrix::StreamBatches batches(stream, engine.spec(), 1, 0);
    ASSERT_TRUE(engine.step(batches));
    EXPECT_EQ(plan.gpu_bytes(0), simt::allocated_bytes());
  });
  const auto sums = [](const MemoryPlan& of) {
    return of.ranks()[0].of(MemoryPurpose::kGradientSums);
  };
  EXPECT_EQ(2 * sums(plan), sums(planned(DType::kInt64)));
}

/// AdamW hides a gradient that is larger by a constant: its first moment does not.
TEST_P(CudaFastTest, MomentsAreThoseOfCanonical) {
  const auto moments = [](const api::EngineSpec& spec) {
    std::vector<float> all;
    with_gpu(spec, [&](Engine& engine) {
      EXPECT_TRUE(engine.initialize());
      const auto stream = stream_of(spec);
      matrix::StreamBatches batches(stream, engine.spec(), 1, 0);
      ASSERT_TRUE(engine.step(batches));
      all = states_of(engine, checkpoint::TensorKind::kFirstMoment);
    });
    return all;
  };
  for (const api::EngineSpec& spec :
       {two_micro_batches(small_spec(GetParam())), two_micro_batches(decoder_spec(GetParam()))}) {
    const std::vector<float> expected = moments(spec);
    const std::vector<float> found = moments(fast(spec));
    ASSERT_EQ(expected.size(), found.size());
    float largest = 0;
    float apart = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      largest = std::max(largest, std::abs(expected[i]));
      apart = std::max(apart, std::abs(expected[i] - found[i]));
    }
    EXPECT_GT(largest, 0);
    EXPECT_LT(apart, 1e-4 * largest);
  }
}

/// Products of gradients alone are split, as the library likes best, without a measurement.
TEST_P(CudaFastTest, TheLibraryChoosesHowGradientsAreSplit) {
  const api::EngineSpec spec = fast(two_micro_batches(small_spec(GetParam())));
  fake_cublaslt().split_k = {4, 1, 3};
  EXPECT_EQ(on_gpu(spec, 1).losses.size(), 1U);
  const std::vector<int>& splits = fake_cublaslt().splits_run;
  EXPECT_THAT(splits, Contains(4));
  EXPECT_THAT(splits, Contains(1));
  EXPECT_THAT(splits, ::testing::Not(Contains(3)));
  // Of each block's four matrices and the classifier's, once per micro-batch.
  const auto blocks = static_cast<int64_t>(spec.model.layers);
  EXPECT_EQ(std::count(splits.begin(), splits.end(), 4), 2 * (4 * blocks + 1));
}

/// What is not finite is no update.
TEST_P(CudaFastTest, AGradientThatIsNotFiniteSkipsTheStep) {
  const api::EngineSpec spec = fast(two_micro_batches(small_spec(GetParam())));
  with_gpu(spec, [&](Engine& engine) {
    EXPECT_TRUE(engine.initialize());
    ASSERT_TRUE(engine.set_parameters([](int, const layout::Rectangle&, std::span<float> values) {
      std::ranges::fill(values, 1e30F);
      return Status();
    }));
    const auto stream = stream_of(spec);
    matrix::StreamBatches batches(stream, engine.spec(), 1, 0);
    const auto report = engine.step(batches);
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_TRUE(report->skipped);
    EXPECT_THAT(states_of(engine, checkpoint::TensorKind::kParameter), ::testing::Each(1e30F));
    EXPECT_THAT(states_of(engine, checkpoint::TensorKind::kFirstMoment), ::testing::Each(0.0F));
  });
}

/// A run that a checkpoint cuts in two ends in the bits of one that nothing cut.
TEST_P(CudaFastTest, ACheckpointGoesOnToTheSameBits) {
  const api::EngineSpec spec = fast(two_micro_batches(small_spec(GetParam())));
  const auto stream = stream_of(spec);
  checkpoint::testing::MemoryFileSystem files;
  const checkpoint::testing::JobDirectory job("/job");
  std::string expected;
  with_gpu(spec, [&](Engine& engine) {
    EXPECT_TRUE(engine.initialize());
    matrix::StreamBatches batches(stream, engine.spec(), 1, 0);
    ASSERT_TRUE(engine.step(batches));
    checkpoint::testing::save_first(files, job, *EngineState(engine).snapshot());
    ASSERT_TRUE(engine.step(batches));
    expected = to_hex(EngineState(engine).hash().value());
  });
  const auto reader = checkpoint::open_newest_good(files, job.root(), std::nullopt,
                                                   checkpoint::Verify::kAll, nullptr);
  ASSERT_TRUE(reader) << reader.error().message;
  EXPECT_TRUE(TrainedModel::load(**reader, {.threads = 1})) << "on processors";
  with_gpu(spec, [&](Engine& engine) {
    ASSERT_TRUE(check_same_run(**reader, engine.spec(), ""));
    EngineState state(engine);
    ASSERT_TRUE(state.load(**reader));
    matrix::StreamBatches batches(stream, engine.spec(), 1, 0);
    batches.start_step(1);
    ASSERT_TRUE(engine.step(batches));
    EXPECT_TRUE(testing_support::same_hash(to_hex(state.hash().value()), expected));
  });
  api::EngineSpec canonical = spec;
  canonical.numerics.mode = api::NumericsMode::kCanonical;
  const Status other = check_same_run(**reader, canonical, "");
  ASSERT_FALSE(other);
  EXPECT_THAT(other.error().message, HasSubstr("numerics.mode: found Canonical, wanted Fast"));
}

/// A run of processors goes on on a GPU, in either mode, near the losses that it would have had.
TEST_P(CudaFastTest, ARunComesFromProcessors) {
  const bool is_long = testing_support::runs_everything() && !testing::is_watched();
  const int64_t steps = is_long ? 20 : 2;
  api::EngineSpec spec = two_micro_batches(small_spec(GetParam()));
  spec.steps = 2 * steps;
  const auto stream = stream_of(spec);
  const auto train = [&](Engine& engine) {
    matrix::StreamBatches batches(stream, engine.spec(), 1, 0);
    batches.start_step(engine.steps_done());
    std::vector<double> losses;
    for (int64_t step = 0; step < steps; ++step)
      losses.push_back(engine.step(batches)->loss);
    return losses;
  };
  checkpoint::testing::MemoryFileSystem files;
  const checkpoint::testing::JobDirectory job("/job");
  std::vector<double> expected;
  with_engine(spec, false, [&](Engine& engine) {
    EXPECT_TRUE(engine.initialize());
    (void)train(engine);
    checkpoint::testing::save_first(files, job, *EngineState(engine).snapshot());
    expected = train(engine);
  });
  const auto reader = checkpoint::open_newest_good(files, job.root(), std::nullopt,
                                                   checkpoint::Verify::kAll, nullptr);
  ASSERT_TRUE(reader) << reader.error().message;
  for (const api::EngineSpec& next : {spec, fast(spec)}) {
    with_gpu(next, [&](Engine& engine) {
      const Status same = check_same_run(**reader, engine.spec(), "");
      ASSERT_TRUE(same) << same.error().message;
      EXPECT_THAT(doubt_of_device(**reader, engine.spec()),
                  HasSubstr("from here on it is on a GPU"));
      ASSERT_TRUE(EngineState(engine).load(**reader));
      EXPECT_EQ(engine.steps_done(), steps);
      const std::vector<double> losses = train(engine);
      for (size_t step = 0; step < losses.size(); ++step)
        EXPECT_NEAR(expected[step], losses[step], 0.02) << step;
    });
  }
}

TEST_P(CudaFastTest, ProcessorsRefuseIt) {
  api::EngineSpec spec = fast(two_micro_batches(small_spec(GetParam())));
  spec.device = api::DeviceKind::kCpu;
  comm::testing::run_world(comm::TransportKind::kLocal, 1, [&](comm::Communicator& world) {
    const auto device = make_cpu_device();
    ASSERT_TRUE(device);
    const comm::Groups groups = comm::Groups::of_data_ranks(world);
    const auto engine = Engine::create({.spec = spec, .device = device->get(), .groups = &groups});
    ASSERT_FALSE(engine);
    EXPECT_EQ(engine.error().code, ErrorCode::kInvalidConfig);
    EXPECT_THAT(engine.error().message,
                HasSubstr("engine.numerics.mode: found Fast, wanted Canonical or Auto on CPUs"));
  });
}

}  // namespace
}  // namespace trainyard::engine

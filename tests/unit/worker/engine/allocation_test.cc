// A step takes no memory from the heap once the first ones have made its buffers.
#include <algorithm>
#include <barrier>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "tests/comm/worker/comm/world.h"
#include "tests/support/allocation_counter.h"
#include "worker/device/cpu_device.h"
#include "worker/engine/engine.h"
#include "worker/matrix/world.h"

namespace trainyard::engine {
namespace {

constexpr int kWarmUpSteps = 3;
constexpr int kSteps = 20;
/// Operations are kept for reuse. How many are in flight at once depends on how late the execution
/// stream is: over many steps their most may rise by a few, and each costs one allocation.
constexpr int64_t kMostInAll = 4;

using Case = std::tuple<api::NumberFormat, int, int>;

class AllocationTest : public ::testing::TestWithParam<Case> {
 protected:
  api::NumberFormat format() const { return std::get<0>(GetParam()); }
  int ranks() const { return std::get<1>(GetParam()); }
  int zero_stage() const { return std::get<2>(GetParam()); }

  /// What each step after the first ones allocated, by all ranks together.
  std::vector<int64_t> allocations_by_step() {
    api::EngineSpec spec = matrix::prime_spec(format());
    spec.parallelism.zero_stage = zero_stage();
    spec.batch.micro_sequences = 4;  // one rank: three micro-batches, the last one short
    const auto stream = matrix::make_token_stream(4096, spec.model.vocab, 1);
    std::barrier together(ranks());
    std::vector<int64_t> counts;
    comm::testing::run_world(comm::TransportKind::kLocal, ranks(), [&](comm::Communicator& world) {
      train(spec, stream, world, [&](const auto& step) {
        together.arrive_and_wait();
        const int64_t before = test::allocations();
        together.arrive_and_wait();
        step();
        together.arrive_and_wait();
        if (world.rank() == 0) counts.push_back(test::allocations() - before);
        together.arrive_and_wait();
      });
    });
    counts.erase(counts.begin(), counts.begin() + std::min<int64_t>(kWarmUpSteps, counts.size()));
    return counts;
  }

 private:
  template <class Around>
  void train(const api::EngineSpec& spec, const std::vector<int32_t>& stream,
             comm::Communicator& world, const Around& around_step) const {
    const auto device = *make_cpu_device({.threads = 2});
    const comm::Groups groups = comm::Groups::of_data_ranks(world);
    const auto engine = Engine::create({.spec = spec, .device = device.get(), .groups = &groups});
    ASSERT_TRUE(engine) << engine.error().message;
    EXPECT_TRUE((*engine)->initialize());
    matrix::StreamBatches batches(stream, spec, ranks(), world.rank());
    for (int64_t step = 0; step < kWarmUpSteps + kSteps; ++step) {
      around_step([&] {
        const auto report = (*engine)->step(batches);
        EXPECT_TRUE(report) << report.error().message;
      });
    }
  }
};

TEST_P(AllocationTest, StepsAfterTheFirstTakeNoMemory) {
  const std::vector<int64_t> counts = allocations_by_step();
  ASSERT_EQ(counts.size(), static_cast<size_t>(kSteps));
  std::string all;
  for (const int64_t count : counts)
    all += " " + std::to_string(count);
  EXPECT_EQ(*std::min_element(counts.begin(), counts.end()), 0) << all;
  // A rank that waits for long notes whom it waits for, which takes memory the first times.
  if (ranks() > 1) return;
  int64_t sum = 0;
  for (const int64_t count : counts)
    sum += count;
  EXPECT_LE(sum, kMostInAll) << all;
}

INSTANTIATE_TEST_SUITE_P(Compute, AllocationTest,
                         ::testing::Combine(::testing::Values(api::NumberFormat::kFP32,
                                                              api::NumberFormat::kBF16),
                                            ::testing::Values(1, 2, 3), ::testing::Values(1, 3)));

/// The same window again and again.
class OneWindow final : public data::MicroBatchSource {
 public:
  explicit OneWindow(int64_t length)
      : tokens_(static_cast<size_t>(length), 1), sequence_{.length = length} {}
  Result<data::MicroBatch> micro_batch(int index) override {
    EXPECT_EQ(index, next_++);
    return data::MicroBatch{
        .rows = {.count = sequence_.length, .sequences = std::span(&sequence_, 1)},
        .tokens = tokens_,
        .targets = tokens_};
  }
  void end_step() override { next_ = 0; }

 private:
  const std::vector<int32_t> tokens_;
  const kernels::Sequence sequence_;
  int next_ = 0;  // of this step
};

TEST(EvaluationMemoryTest, DoesNotGrowWithTheSet) {
  const api::EngineSpec spec = matrix::prime_spec(api::NumberFormat::kFP32);
  const auto world = comm::make_communicator(comm::TransportKind::kLocal,
                                             {.endpoints = {{.rank = 0}}, .job_uid = "test"}, {});
  ASSERT_TRUE(world) << world.error().message;
  const auto device = *make_cpu_device();
  const comm::Groups groups = comm::Groups::of_data_ranks(**world);
  const auto engine = Engine::create({.spec = spec, .device = device.get(), .groups = &groups});
  ASSERT_TRUE(engine) << engine.error().message;
  EXPECT_TRUE((*engine)->initialize());
  const auto loss_of = [&](int64_t windows) {
    OneWindow batches(spec.data.sequence_length);
    test::take_largest_allocation();
    const auto report = (*engine)->evaluate(batches, windows, 1);
    EXPECT_TRUE(report) << report.error().message;
    return report ? report->loss : 0;
  };
  const double loss = loss_of(1);
  EXPECT_GT(loss, 0);
  EXPECT_EQ(loss_of(8192), loss) << "of windows that are all alike, and a power of two";
  EXPECT_LT(test::take_largest_allocation(), 1 << 20);
}

}  // namespace
}  // namespace trainyard::engine

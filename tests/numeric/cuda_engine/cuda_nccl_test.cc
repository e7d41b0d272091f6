// Ranks whose emulated GPUs meet by an emulated NCCL: they train to the bits of one rank, and of
// ranks that meet through the host's memory.

#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/api/numerics.h"
#include "tests/numeric/cuda_engine/nccl_ranks.h"
#include "tests/numeric/cuda_engine/tensor_ranks.h"
#include "tests/support/exact.h"
#include "tests/support/extent.h"
#include "worker/device/cuda_plan.h"
#include "worker/engine/limits.h"
#include "worker/job/job_plan.h"
#include "worker/state/units.h"

namespace trainyard::engine {
namespace {

using ::testing::AllOf;
using testing::data_parallel;
using ::testing::Each;
using testing::expect_planned;
using ::testing::HasSubstr;
using testing::is_for_watchers;
using testing::is_watched;
using testing::kUnitBytes;
using testing::Layout;
using testing::layouts;
using testing::mesh_of;
using testing::Rank;
using testing::stream_of;
using testing::train_engine;
using testing::Trained;
using testing_support::fake_nccl;
using testing_support::NcclFault;

class CudaRanksByNcclTest : public ::testing::TestWithParam<api::NumberFormat> {
 protected:
  void SetUp() override { testing::begin_nccl(); }
  void TearDown() override { testing::expect_clean_nccl(); }

  static api::EngineSpec spec_of(const Layout& layout) {
    api::EngineSpec spec = testing::spec_of(layout, GetParam());
    if (layout.ranks > 1) spec.runtime.transport = api::Transport::kNccl;
    return spec;
  }

  static void with_ranks(const Layout& layout, const std::function<void(const Rank&)>& use,
                         std::chrono::milliseconds deadline = testing::kNcclPatience) {
    with_ranks(layout, spec_of(layout), use, deadline);
  }
  static void with_ranks(const Layout& layout, const api::EngineSpec& spec,
                         const std::function<void(const Rank&)>& use,
                         std::chrono::milliseconds deadline = testing::kNcclPatience) {
    simt::emulation_options().devices = layout.ranks;
    comm::testing::run_world(
        comm::TransportKind::kLocal, layout.ranks, [&](comm::Communicator& world) {
          auto host =
              comm::Groups::make(world, mesh_of(layout), layout.parallelism.chunks_per_stage);
          ASSERT_TRUE(host) << host.error().message;
          const auto device = testing::cuda_device(spec, world.rank());
          ASSERT_TRUE(device) << device.error().message;
          const auto transport = testing::fake_nccl_transport(**device, world, deadline);
          ASSERT_TRUE(transport) << transport.error().message;
          const auto groups =
              host->on_device([&](comm::Communicator& group, comm::GroupUse group_use) {
                return (*transport)->make(group, group_use);
              });
          ASSERT_TRUE(groups) << groups.error().message;
          const Status open = (*transport)->open();
          ASSERT_TRUE(open) << open.error().message;
          const auto engine = Engine::create({.spec = spec,
                                              .device = device->get(),
                                              .groups = &*groups,
                                              .unit_bytes = kUnitBytes});
          ASSERT_TRUE(engine) << engine.error().message;
          use({world.rank(), &*host, engine->get()});
          if (::testing::Test::HasFailure())
            groups->abort(Error{ErrorCode::kAborted, "the test failed"});
          (void)(*transport)->close();
          EXPECT_FALSE((*transport)->is_stuck());
        });
  }
};
INSTANTIATE_TEST_SUITE_P(Precisions, CudaRanksByNcclTest,
                         ::testing::ValuesIn(testing::precisions()));

TEST_P(CudaRanksByNcclTest, EveryLayoutTrainsToTheBitsOfOneRankInPlannedMemory) {
  const bool all = testing_support::runs_everything() && !is_watched();
  const int64_t steps = is_watched() ? 1 : 2;
  testing::OneRank one_rank(GetParam(), steps);
  for (const Layout& layout : layouts()) {
    if (layout.ranks == 1 || (!all && !is_for_watchers(layout))) continue;
    SCOPED_TRACE(layout.name);
    const Trained& expected = one_rank.with_batches_of(layout);
    const auto plan =
        MemoryPlan::make({.spec = spec_of(layout),
                          .mesh = mesh_of(layout),
                          .formats = cuda_formats(compute_type(spec_of(layout).precision)),
                          .unit_bytes = kUnitBytes});
    ASSERT_TRUE(plan) << plan.error().message;
    with_ranks(layout, [&](const Rank& rank) {
      expect_planned(*plan, rank);
      const auto trained = train_engine(*rank.engine, steps);
      ASSERT_TRUE(trained) << layout.name << ": " << trained.error().message;
      EXPECT_TRUE(testing_support::same_hash(trained->hash, expected.hash)) << layout.name;
      EXPECT_EQ(trained->losses, expected.losses) << layout.name;
      EXPECT_EQ(trained->held_out, expected.held_out) << layout.name;
      EXPECT_GT(rank.engine->groups().counters().bytes_sent, 0) << layout.name;
      expect_planned(*plan, rank);
    });
    if (HasFatalFailure()) return;
    EXPECT_EQ(fake_nccl().aborted, 0) << layout.name;
    EXPECT_GT(fake_nccl().finalized, 0) << layout.name;
  }
}

/// In NCCL's order, which is not the host's.
TEST_P(CudaRanksByNcclTest, WithFastNumericsALayoutHasOneResult) {
  const bool all = testing_support::runs_everything() && !is_watched();
  if (GetParam() == api::NumberFormat::kFP32 && !all) return;
  Trained canonical;
  with_ranks({.name = "OneRank", .parallelism = data_parallel(1, 0)}, [&](const Rank& rank) {
    const auto trained = train_engine(*rank.engine, all ? 2 : 1);
    ASSERT_TRUE(trained) << trained.error().message;
    canonical = *trained;
  });
  constexpr const char* kShort[] = {"Zero3Of2"};
  constexpr const char* kAll[] = {"Zero3Of2", "Zero2Of2By2", "Zero2Of3"};
  testing::expect_fast_layouts(GetParam(), api::Transport::kNccl,
                               all ? std::span<const char* const>(kAll) : kShort, canonical,
                               [](const Layout& layout, const api::EngineSpec& spec,
                                  const auto& use) { with_ranks(layout, spec, use); });
}

TEST_P(CudaRanksByNcclTest, TensorRanksHaveTheBitsOfOneRank) {
  const bool all = testing_support::runs_everything() && !is_watched();
  if (GetParam() == api::NumberFormat::kFP32 && !all) return;
  const Layout tensor = testing::with_tensor({"Tensor2", 1, 2, data_parallel(0, 1)}, 2);
  const testing::WithRanks by_nccl = [](const Layout& layout, api::EngineSpec spec,
                                        const auto& use) { with_ranks(layout, spec, use); };
  api::EngineSpec spec = testing::tensor_spec_of(tensor, GetParam(), false);
  spec.runtime.transport = api::Transport::kNccl;
  testing::expect_bits_of_one_rank(spec, 1, {tensor}, by_nccl);
  if (!all) return;
  for (const bool slices : {false, true}) {
    const Layout layout = testing::with_tensor({"Fast2", 1, 2, data_parallel(0, 1)}, 2, slices);
    spec = testing::tensor_spec_of(layout, GetParam(), true);
    spec.runtime.transport = api::Transport::kNccl;
    spec.numerics = {.mode = api::NumericsMode::kFast};
    spec.numerics = api::with_defaults(spec);
    Trained first;
    for (int run = 0; run < 2; ++run)
      testing::expect_trained(layout, spec, 2, by_nccl, first);
  }
}

TEST_P(CudaRanksByNcclTest, ContextRanksHaveTheBitsOfAnyTransport) {
  const bool all = testing_support::runs_everything() && !is_watched();
  if (GetParam() == api::NumberFormat::kFP32 && !all) return;
  const Layout layout = testing::with_context({"Context2", 1, 2, data_parallel(0, 1)}, 2);
  const testing::WithRanks by_nccl = [](const Layout& of, const api::EngineSpec& spec,
                                        const auto& use) { with_ranks(of, spec, use); };
  api::EngineSpec spec = testing::tensor_spec_of(layout, GetParam(), true);
  spec.numerics = {.mode = api::NumericsMode::kFast};
  spec.numerics = api::with_defaults(spec);
  // Two ranks add two numbers, whatever the order.
  Trained first;
  if (!is_watched()) testing::expect_trained(layout, spec, 1, testing::with_staged_ranks, first);
  spec.runtime.transport = api::Transport::kNccl;
  testing::expect_trained(layout, spec, 1, by_nccl, first);
}

/// Steps of two ranks in which one has a fault; what each says of its end.
std::vector<std::string> ends_of(
    const Layout& layout,
    const std::function<void(const Layout&, const std::function<void(const Rank&)>&)>& with_ranks) {
  std::vector<std::string> ends(static_cast<size_t>(layout.ranks));
  with_ranks(layout, [&](const Rank& rank) {
    const auto trained = train_engine(*rank.engine, 2);
    ends[static_cast<size_t>(rank.rank)] = trained ? "none" : trained.error().message;
    if (!trained) rank.engine->groups().abort(trained.error());
  });
  return ends;
}

/// Numbers do not matter: one precision is enough.
class CudaRanksFaultByNcclTest : public CudaRanksByNcclTest {};
INSTANTIATE_TEST_SUITE_P(Precision, CudaRanksFaultByNcclTest,
                         ::testing::Values(api::NumberFormat::kFP32));

TEST_P(CudaRanksFaultByNcclTest, AFaultOfOneRankEndsAllByItsName) {
  fake_nccl().fault_rank = 1;
  fake_nccl().fault_at = 2;
  const auto long_patience = [](const Layout& layout, const auto& use) { with_ranks(layout, use); };
  fake_nccl().fault_function = "ncclReduceScatter";
  fake_nccl().fault = NcclFault::kError;
  for (const std::string& end : ends_of({"Zero3", 2, 2, data_parallel(3, 0)}, long_patience))
    EXPECT_THAT(end, HasSubstr("rank 1: NCCL: ncclReduceScatter of ranks 0 and 1: error 3: the "
                               "fake's error: the fake's last words"));
  testing::expect_clean_nccl();
  testing::begin_nccl();
  fake_nccl().fault_rank = 1;
  fake_nccl().fault_at = 2;
  fake_nccl().fault_function = "ncclAllGather";
  fake_nccl().fault = NcclFault::kLateError;
  for (const std::string& end : ends_of({"Zero3", 2, 2, data_parallel(3, 0)}, long_patience))
    EXPECT_THAT(end, AllOf(HasSubstr("rank 1: NCCL: "), HasSubstr("of ranks 0 and 1: error 6")));
}

TEST_P(CudaRanksFaultByNcclTest, AnOperationThatIsNeverDoneEndsAll) {
  const auto told = Each(HasSubstr("NCCL: reduce_scatter of ranks 0 and 1 made no progress"));
  const std::vector<std::string> ends = testing::patient_ends(
      [](int times) {
        testing_support::reset_fake_nccl();
        fake_nccl().fault_rank = 1;
        fake_nccl().fault_at = 2;
        fake_nccl().fault_function = "ncclReduceScatter";
        fake_nccl().fault = NcclFault::kNeverDone;
        return ends_of({"Zero3", 2, 2, data_parallel(3, 0)},
                       [&](const Layout& layout, const auto& use) {
                         with_ranks(layout, use, std::chrono::seconds(2) * times);
                       });
      },
      told);
  EXPECT_THAT(ends, told);
}

}  // namespace
}  // namespace trainyard::engine

// One of several GPUs hangs. The threads of all ranks wait, but the places that the ranks report
// tell whose GPU it is.

#include <chrono>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/numeric/cuda_engine/call_faults.h"
#include "tests/numeric/cuda_engine/ranks.h"
#include "tests/support/progress_pages.h"

namespace trainyard::engine {
namespace {

using std::chrono::milliseconds;
using testing::CallCase;
using testing::Layout;
using testing_support::is_first;
using testing_support::ProgressPages;

/// For this long nothing moves any more.
constexpr milliseconds kStill{150};
constexpr std::chrono::seconds kPatience{60};
constexpr int kHung = 1;
/// The GPU hangs in the second, so that others come to wait for it.
constexpr int64_t kSteps = 3;

Layout layout_of(const std::string& name) {
  for (const Layout& layout : testing::layouts())
    if (layout.name == name) return layout;
  ADD_FAILURE() << name;
  return {};
}

void train(const Layout& layout, ProgressPages& pages, int64_t steps) {
  const api::EngineSpec spec = testing::spec_of(layout, api::NumberFormat::kFP32);
  const auto stream = testing::stream_of(spec);
  const auto waits = [&pages](int rank) { return &pages.of(rank); };
  testing::with_watched_ranks(layout, spec, waits, [&](const testing::Rank& rank) {
    Progress& progress = pages.of(rank.rank);
    StepObserver& observer = rank.engine->observer();
    observer.on_instruction = [&](int, const Instruction&, int64_t level) {
      progress.level(level);
    };
    observer.on_end = [&](int64_t level) { progress.level(level); };
    observer.on_wait = [&](bool for_others) { progress.waits(for_others); };
    ASSERT_TRUE(rank.engine->initialize());
    const comm::Groups& groups = rank.engine->groups();
    matrix::StreamBatches batches(stream, spec, groups.data_ranks(), groups.data_rank());
    for (int64_t step = 0; step < steps; ++step) {
      const auto report = rank.engine->step(batches);
      ASSERT_TRUE(report) << report.error().message;
    }
  });
}

/// What rank kHung enqueues in the second of three steps.
std::vector<CallCase> cases_of(const Layout& layout) {
  std::vector<std::map<std::string, int64_t>> enqueued;
  for (const int64_t steps : {1, 2}) {
    testing::plant({}, kHung);
    ProgressPages pages(layout.ranks);
    train(layout, pages, steps);
    enqueued.push_back(simt::call_faults().enqueued);
  }
  std::vector<CallCase> cases;
  for (const auto& [function, all] : enqueued[1]) {
    for (int64_t at = enqueued[0][function]; at < all; ++at)
      cases.push_back({simt::CallFault::kNeverDone, function, at});
  }
  return cases;
}

/// Until nothing moves any more, and that rank is the first.
bool comes_to_be_first(const ProgressPages& pages) {
  const auto give_up = std::chrono::steady_clock::now() + kPatience;
  std::vector<int64_t> before;
  auto since = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() < give_up) {
    const std::vector<int64_t> now = pages.arrivals();
    if (now != before || !is_first(now, kHung) || !simt::fault_has_happened())
      since = std::chrono::steady_clock::now();
    if (std::chrono::steady_clock::now() - since > kStill) return true;
    before = now;
    std::this_thread::sleep_for(milliseconds(5));
  }
  return false;
}

class HungGpuTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { testing::begin_emulation(); }
  void TearDown() override {
    simt::reset_call_faults();
    testing::expect_clean_emulation();
  }
};

TEST_P(HungGpuTest, ItsRankIsTheFirstInLogicalTime) {
  const Layout layout = layout_of(GetParam());
  const std::vector<CallCase> all = cases_of(layout);
  ASSERT_GT(all.size(), 50U);
  // The commit draws them.
  const size_t share = all.size() / (testing_support::runs_everything() ? 16 : 2);
  for (size_t i = testing_support::test_seed() % share; i < all.size(); i += share) {
    const CallCase& planted = all[i];
    SCOPED_TRACE(planted.name());
    testing::plant(planted, kHung);
    ProgressPages pages(layout.ranks);
    std::thread ranks([&] { train(layout, pages, kSteps); });
    EXPECT_TRUE(comes_to_be_first(pages)) << ::testing::PrintToString(pages.arrivals());
    simt::release_call_faults();
    ranks.join();
    EXPECT_TRUE(simt::call_faults().has_happened);
  }
}

/// Where accesses to memory are watched, runs take too long.
std::vector<std::string> layouts() {
  if (testing::is_watched()) return {};
  if (!testing_support::runs_everything()) return {"Zero3Of2", "OneFOneBOf2"};
  return {"Zero1Of2", "Zero3Of2", "OneFOneBOf2", "OneFOneBOf2By2Zero1"};
}
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(HungGpuTest);
INSTANTIATE_TEST_SUITE_P(Layouts, HungGpuTest, ::testing::ValuesIn(layouts()),
                         [](const auto& layout) { return layout.param; });

}  // namespace
}  // namespace trainyard::engine

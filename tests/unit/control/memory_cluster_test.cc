#include "tests/support/memory_cluster.h"

#include <gtest/gtest.h>

#include "tests/support/cluster_conformance.h"
#include "tests/support/manual_clock.h"

namespace trainyard::testing_support {
namespace {

class MemoryWorld final : public World {
 public:
  explicit MemoryWorld(int64_t lag) { memory_.set_lag(lag); }

  control::Cluster& cluster() override { return memory_; }
  control::JobKey key() const override { return memory_.key(); }
  void move_on() override { memory_.step(); }
  void finish_pod(const std::string& name, int exit_code) override {
    control::ContainerExit exit;
    exit.exit_code = exit_code;
    memory_.finish_pod(name, exit);
  }

 private:
  ManualClock clock_;
  MemoryCluster memory_{clock_, make_job(2)};
};

INSTANTIATE_TEST_SUITE_P(Memory, ClusterConformance, testing::Values(WorldFactory([] {
                           return std::make_unique<MemoryWorld>(0);
                         })));

TEST(MemoryClusterTest, AStaleViewIsOldButNeverGoesBack) {
  const ManualClock clock;
  MemoryCluster cluster(clock, make_job(1));
  cluster.set_lag(3);
  size_t seen = 0;
  for (int index = 0; index < 6; ++index) {
    control::PodSpec spec;
    spec.name = "pod-" + std::to_string(index);
    spec.job_uid = "job-uid-1";
    ASSERT_TRUE(cluster.create_pod(spec).has_value());
    const auto view = cluster.observe(cluster.key());
    ASSERT_TRUE(view.has_value());
    EXPECT_GE(view->pods.size(), seen);
    seen = view->pods.size();
    EXPECT_EQ(static_cast<int>(seen), std::max(0, index + 1 - 3));
  }
}

}  // namespace
}  // namespace trainyard::testing_support

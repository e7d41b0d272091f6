// A node is lost in the three ways in which nodes are: its power is cut, it hangs, its network is
// unplugged. The job goes on elsewhere although the node's pods can be neither seen nor ended, and
// nothing of them counts when the node comes back.
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/cluster_test.h"

namespace trainyard::cluster {
namespace {

struct Fault {
  const char* name;
  const char* act;
  const char* undo;
};

class NodeLossTest : public testing_support::ClusterTest,
                     public testing::WithParamInterface<Fault> {
 protected:
  void TearDown() override {
    if (!lost_.empty()) {
      to_node(GetParam().undo, lost_);
      EXPECT_TRUE(comes_back(lost_));
    }
    ClusterTest::TearDown();
  }

  void lose(const std::string& node) {
    to_node(GetParam().act, node);
    lost_ = node;
  }
  void find_again() {
    to_node(GetParam().undo, lost_);
    ASSERT_TRUE(comes_back(lost_));
    lost_.clear();
  }

 private:
  std::string lost_;
};

TEST_P(NodeLossTest, TheGangGoesOnElsewhereAndTheNodeComesBackToNothing) {
  Json job = trainer_job("train", 2, {"meet-after", "2"});
  spread(job, Apart::kWherePossible);
  apply(job);
  ASSERT_TRUE(runs("train", 2, 0));
  const std::string pod = member("train", 1);
  const std::string node = nodes_of_pods("train")[pod];
  ASSERT_NE(node, nodes_of_pods("train")[member("train", 0)]);

  lose(node);
  ASSERT_TRUE(runs("train", 2, 1));
  for (int index = 0; index < 2; ++index) {
    EXPECT_NE(nodes_of_pods("train")[member("train", index)], node);
  }
  // The gang has met and is done; Complete says, as of batch/v1's jobs, that no pod is left.
  ASSERT_TRUE(reaches("train", "SuccessCriteriaMet")) << "the pod on the lost node still holds it";
  EXPECT_EQ(node_ready(node), "Unknown");
  const Json stuck = get({"pod", pod});
  ASSERT_TRUE(stuck.is_object()) << "a pod cannot be gone before its kubelet has said so";
  EXPECT_TRUE(stuck["metadata"].contains("deletionTimestamp"));
  Json status = job_status("train");
  EXPECT_EQ(status["restarts"]["total"], 1);
  ASSERT_FALSE(status["attempts"].empty());
  EXPECT_EQ(status["attempts"][0]["reason"], "NodeLost") << status["attempts"].dump(2);
  EXPECT_EQ(status["attempts"][0]["node"], node);
  EXPECT_EQ(status["attempts"][0]["podName"], pod);

  find_again();
  EXPECT_TRUE(wait_until([&] {
    return get({"pod", pod}).is_null();
  })) << must({"get", "pods", "-o", "wide"});
  EXPECT_TRUE(reaches("train", "Complete"));
  EXPECT_EQ(job_status("train")["restarts"]["total"], 1);
}

INSTANTIATE_TEST_SUITE_P(Ways, NodeLossTest,
                         testing::Values(Fault{"PowerCut", "kill", "start"},
                                         Fault{"Hang", "pause", "unpause"},
                                         Fault{"Unplugged", "disconnect", "connect"}),
                         [](const auto& way) { return way.param.name; });

}  // namespace
}  // namespace trainyard::cluster

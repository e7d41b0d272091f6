#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "tests/support/operator_process.h"

namespace trainyard::testing_support {

/// A test in a cluster of real nodes (tests/cluster/cluster), where the operator runs as a
/// Deployment. The cluster is the one that TRAINYARD_TEST_CLUSTER names; where this machine can
/// have none, tests are skipped with the reason.
class ClusterTest : public JobTest {
 protected:
  static void SetUpTestSuite();
  static void TearDownTestSuite();
  void SetUp() override;
  void TearDown() override;

  /// A job whose pods run tests/cluster/trainer with these arguments, and leave a lost node at
  /// once.
  static Json trainer_job(const std::string& name, int nodes,
                          const std::vector<std::string>& arguments);
  /// The job's pods are taken off a lost node at once.
  static void leave_lost_nodes(Json& job);
  /// No two pods of the job on one node: always, or where that is possible.
  enum class Apart { kAlways, kWherePossible };
  static void spread(Json& job, Apart apart);

  /// Node by name of the pod, of pods that are not being deleted.
  std::map<std::string, std::string> nodes_of_pods(const std::string& job) const;
  /// tools/kind/node: `act` is done to the node.
  static void to_node(const std::string& act, const std::string& node);
  /// Runs a command on the node, which must succeed; its output.
  static std::string on_node(const std::string& node, const std::vector<std::string>& command);
  /// tools/kind/volume: gives the test's namespace a claim; the folder of this machine with its
  /// files.
  std::filesystem::path make_claim(const std::string& name,
                                   const std::string& mode = "ReadWriteMany");
  /// "True", "False" or "Unknown": whether the node is ready.
  std::string node_ready(const std::string& node) const;
  /// Waits until a node that has come back is ready and nothing is driven from it any more: its
  /// taints go some seconds after it is ready, and until then new pods are evicted at once.
  ::testing::AssertionResult comes_back(const std::string& node) const;
  /// What the operator has said of late.
  std::string operator_log() const;

 private:
  std::vector<std::string> volumes_;  ///< of the claims
  static std::string lacking_;        ///< why there is no cluster; empty where there is one
};

}  // namespace trainyard::testing_support

#include "tests/support/cluster_test.h"

#include <cstdlib>
#include <fstream>

#include <nlohmann/json.hpp>

#include "tests/support/paths.h"

namespace trainyard::testing_support {
namespace {

constexpr std::chrono::minutes kActTimeout{1};

std::string cluster_folder() {
  const char* folder = std::getenv("TRAINYARD_TEST_CLUSTER");
  return folder == nullptr ? "" : folder;
}

/// A script of tools/kind on this cluster; its output.
std::string kind_tool(const std::string& tool, const std::vector<std::string>& arguments) {
  const TemporaryDirectory scratch;
  ChildProcess::Spec spec{.argv = {source_path("tools/kind/" + tool), cluster_folder()},
                          .output = scratch.path() / "out",
                          .errors = scratch.path() / "err"};
  spec.argv.insert(spec.argv.end(), arguments.begin(), arguments.end());
  CommandResult done = run_command(spec, kActTimeout);
  EXPECT_EQ(done.exit_code, 0) << tool << " " << ::testing::PrintToString(arguments) << "\n"
                               << done.output << done.errors;
  return std::move(done.output);
}

}  // namespace

std::string ClusterTest::lacking_;

void ClusterTest::SetUpTestSuite() {
  ASSERT_FALSE(cluster_folder().empty())
      << "start a cluster (tests/cluster/cluster up DIR build/dev/bin) and set "
         "TRAINYARD_TEST_CLUSTER=DIR";
  std::ifstream skipped(cluster_folder() + "/skipped");
  if (std::getline(skipped, lacking_)) return;
  ::setenv("TRAINYARD_TEST_PLANE", cluster_folder().c_str(), 1);
  JobTest::SetUpTestSuite();
}

void ClusterTest::TearDownTestSuite() {
  if (lacking_.empty()) JobTest::TearDownTestSuite();
}

void ClusterTest::SetUp() {
  if (!lacking_.empty()) GTEST_SKIP() << lacking_;
  JobTest::SetUp();
}

void ClusterTest::TearDown() {
  if (IsSkipped()) return;
  if (HasFailure()) {
    std::cout << "the pods:\n"
              << kubectl({"get", "pods", "-o", "wide"}).output << "the jobs:\n"
              << kubectl({"get", "tj", "-o", "yaml"}).output << "the operator said:\n"
              << operator_log() << std::endl;
  }
  JobTest::TearDown();
  for (const std::string& volume : volumes_)
    kubectl({"delete", "pv", volume, "--wait=false", "--ignore-not-found"});
}

ClusterTest::Json ClusterTest::trainer_job(const std::string& name, int nodes,
                                           const std::vector<std::string>& arguments) {
  Json job = job_manifest(name, nodes);
  job["spec"]["agent"] = "None";
  Json& pod = job["spec"]["template"]["spec"];
  Json& container = pod["containers"][0];
  container["image"] = "localhost/trainyard-trainer:test";
  container.erase("command");
  container["args"] = arguments;
  container["resources"] = {{"requests", {{"cpu", "10m"}, {"memory", "16Mi"}}}};
  leave_lost_nodes(job);
  return job;
}

void ClusterTest::leave_lost_nodes(Json& job) {
  // Without these a pod stays on a node that does not answer for five minutes.
  for (const char* taint : {"unreachable", "not-ready"}) {
    job["spec"]["template"]["spec"]["tolerations"].push_back(
        {{"key", std::string("node.kubernetes.io/") + taint},
         {"operator", "Exists"},
         {"effect", "NoExecute"},
         {"tolerationSeconds", 0}});
  }
}

void ClusterTest::spread(Json& job, Apart apart) {
  const Json selector = {{"matchLabels", {{"trainyard.dev/job-name", job["metadata"]["name"]}}}};
  job["spec"]["template"]["spec"]["topologySpreadConstraints"] = Json::array(
      {{{"maxSkew", 1},
        {"topologyKey", "kubernetes.io/hostname"},
        {"whenUnsatisfiable", apart == Apart::kAlways ? "DoNotSchedule" : "ScheduleAnyway"},
        {"labelSelector", selector}}});
}

std::map<std::string, std::string> ClusterTest::nodes_of_pods(const std::string& job) const {
  std::map<std::string, std::string> nodes;
  for (const Json& pod : pods(job)) {
    nodes[pod["metadata"]["name"]] = pod["spec"].value("nodeName", "");
  }
  return nodes;
}

void ClusterTest::to_node(const std::string& act, const std::string& node) {
  kind_tool("node", {act, node});
}

std::string ClusterTest::on_node(const std::string& node, const std::vector<std::string>& command) {
  std::vector<std::string> arguments = {"exec", node};
  arguments.insert(arguments.end(), command.begin(), command.end());
  return kind_tool("node", arguments);
}

std::filesystem::path ClusterTest::make_claim(const std::string& name, const std::string& mode) {
  std::string told = kind_tool("volume", {name, "--namespace", name_space(), "--mode", mode});
  volumes_.push_back(name_space() + "-" + name);
  told.erase(told.find_last_not_of('\n') + 1);
  return told.substr(told.find_last_of('\n') + 1);
}

std::string ClusterTest::node_ready(const std::string& node) const {
  const Json object = get({"node", node});
  if (!object.is_object()) return "";
  for (const Json& entry : object["status"]["conditions"]) {
    if (entry["type"] == "Ready") return entry["status"];
  }
  return "";
}

::testing::AssertionResult ClusterTest::comes_back(const std::string& node) const {
  const auto is_well = [&] {
    const Json object = get({"node", node});
    return object.is_object() && !object["spec"].contains("taints") && node_ready(node) == "True";
  };
  if (wait_until(is_well)) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << "waited for node " << node << " to be well, it is " << get({"node", node}).dump(2);
}

std::string ClusterTest::operator_log() const {
  return kubectl({"logs", "--namespace", "trainyard-system", "deployment/trainyard-operator",
                  "--tail", "200"})
      .output;
}

}  // namespace trainyard::testing_support

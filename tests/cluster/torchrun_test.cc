// A PyTorch program that knows nothing of Trainyard, started by a stock torchrun in an image that
// knows nothing of it either: the example of manifests/examples, on real nodes.
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/cluster_test.h"
#include "tests/support/paths.h"

namespace trainyard::cluster {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;
using testing_support::ChildProcess;
using testing_support::CommandResult;

constexpr char kJob[] = "torchrun-ddp";
constexpr std::chrono::seconds kTraining{180};

const std::string kSource = testing_support::source_folder();

class TorchrunTest : public testing_support::ClusterTest {
 protected:
  void SetUp() override {
    const testing_support::TemporaryDirectory scratch;
    const CommandResult lacking = pytorch({"lacking"}, scratch.path());
    if (!lacking.output.empty()) GTEST_SKIP() << lacking.output;
    ClusterTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    CommandResult image = pytorch({"up", plane().folder()}, folder());
    ASSERT_EQ(image.exit_code, 0) << image.output << image.errors;
    std::string& told = image.output;
    told.erase(told.find_last_not_of('\n') + 1);
    pytorch_ = told.substr(told.find_last_of('\n') + 1);
    must({"create", "configmap", kJob,
          "--from-file=train.py=" + kSource + "/manifests/examples/torchrun-ddp.py"});
  }

  /// The example on two nodes, in an image of this machine that has Python and no PyTorch, which
  /// comes from the node.
  Json example(int steps) const {
    Json job = Json::parse(must({"create", "--dry-run=client", "-o", "json", "-f",
                                 kSource + "/manifests/examples/torchrun-ddp.yaml"}));
    job["metadata"].erase("namespace");
    Json& pod = job["spec"]["template"]["spec"];
    Json& container = pod["containers"][0];
    container["image"] = "localhost/trainyard-python:test";
    container["args"] = {"--steps", std::to_string(steps)};
    container["resources"] = {{"requests", {{"cpu", "100m"}, {"memory", "512Mi"}}}};
    container["env"] =
        Json::array({{{"name", "PATH"}, {"value", pytorch_ + "/bin:/usr/bin:/bin"}}});
    container["volumeMounts"].push_back(
        {{"name", "pytorch"}, {"mountPath", pytorch_}, {"readOnly", true}});
    pod["volumes"].push_back(
        {{"name", "pytorch"}, {"hostPath", {{"path", pytorch_}, {"type", "Directory"}}}});
    spread(job, Apart::kAlways);
    return job;
  }

  /// Keeps what the pod prints, to its end.
  void listen_to(const std::string& pod) {
    listeners_.push_back(std::make_unique<ChildProcess>(ChildProcess::Spec{
        .argv = {plane().folder() / "kubectl", "--kubeconfig", plane().kubeconfig(), "--namespace",
                 name_space(), "logs", "--follow", "pod/" + pod},
        .output = folder() / pod,
        .errors = folder() / (pod + ".err")}));
  }
  std::string words_of(const std::string& pod) const {
    std::ifstream file(folder() / pod);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  ::testing::AssertionResult says(const std::string& pod, const std::string& words) const {
    if (wait_until([&] { return words_of(pod).find(words) != std::string::npos; }, kTraining))
      return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure()
           << "waited for '" << words << "' of " << pod << ", which says\n"
           << words_of(pod) << operator_log();
  }
  /// The job trains: its program has found its world.
  void expect_world(const std::string& first, const std::string& second) const {
    for (const char* rank : {"rank 0 of 4, local rank 0", "rank 1 of 4, local rank 1"})
      EXPECT_TRUE(says(first, rank));
    for (const char* rank : {"rank 2 of 4, local rank 0", "rank 3 of 4, local rank 1"})
      EXPECT_TRUE(says(second, rank));
  }
  /// The program's own judgement, and what kubectl shows of it.
  void expect_trained(const std::string& first, int restarts) const {
    ASSERT_TRUE(says(first, "ranks and one process agree"));
    EXPECT_THAT(words_of(first), HasSubstr("4 ranks and one process are apart by "));
    ASSERT_TRUE(reaches(kJob, "Complete")) << operator_log();
    EXPECT_EQ(job_status(kJob)["restarts"]["total"], restarts) << job_status(kJob).dump(2);
    // Its steps are its own affair: there is none to show.
    EXPECT_THAT(must({"get", "tj", kJob}),
                ContainsRegex("torchrun-ddp +Complete +0 +2 +" + std::to_string(restarts) + " "));
  }
  /// The first process of the pod's container, as its node sees it.
  std::string first_process_of(const std::string& pod) const {
    const std::string script = R"(for process in $(pgrep -f bin/torchrun); do
      tr '\0' '\n' <"/proc/$process/environ" 2>/dev/null | grep -qx "TRAINYARD_POD_NAME=$0" || continue
      grep -q '^NSpid:.*[[:space:]]1$' "/proc/$process/status" && echo "$process"
    done; true)";
    const auto nodes = nodes_of_pods(kJob);
    std::string found = on_node(nodes.at(pod), {"bash", "-c", script, pod});
    found.erase(found.find_last_not_of('\n') + 1);
    EXPECT_THAT(found, ContainsRegex("^[0-9]+$")) << pod;
    return found;
  }

 private:
  /// tests/cluster/pytorch
  static CommandResult pytorch(std::vector<std::string> arguments,
                               const std::filesystem::path& folder) {
    arguments.insert(arguments.begin(), kSource + "/tests/cluster/pytorch");
    return testing_support::run_command(
        {.argv = arguments, .output = folder / "pytorch.out", .errors = folder / "pytorch.err"},
        std::chrono::minutes(2));
  }

  std::string pytorch_;  ///< the same folder on this machine, on the nodes and in pods
  std::vector<std::unique_ptr<ChildProcess>> listeners_;
};

TEST_F(TorchrunTest, AStockProgramTrainsOnTwoNodesAsInOneProcess) {
  apply(example(1000));
  ASSERT_TRUE(runs(kJob, 2, 0)) << operator_log();
  const auto nodes = nodes_of_pods(kJob);
  ASSERT_EQ(nodes.size(), 2U);
  EXPECT_NE(nodes.begin()->second, nodes.rbegin()->second);
  const std::string first = member(kJob, 0);
  const std::string second = member(kJob, 1);
  listen_to(first);
  listen_to(second);
  expect_world(first, second);
  expect_trained(first, 0);
}

TEST_F(TorchrunTest, AKilledPodStartsAllAgainAndTheyTrainToTheEnd) {
  apply(example(3000));
  ASSERT_TRUE(runs(kJob, 2, 0)) << operator_log();
  const std::string first = member(kJob, 0);
  const std::string lost = member(kJob, 1);
  listen_to(first);
  ASSERT_TRUE(says(first, "step 100 "));
  on_node(nodes_of_pods(kJob)[lost], {"kill", "-KILL", first_process_of(lost)});
  ASSERT_TRUE(runs(kJob, 2, 1)) << operator_log();
  Json attempt = job_status(kJob)["attempts"][0];
  EXPECT_EQ(attempt["podName"], lost) << attempt.dump(2);
  EXPECT_EQ(attempt["exitCode"], 137) << attempt.dump(2);
  EXPECT_EQ(attempt["class"], "Infrastructure") << attempt.dump(2);
  const std::string next = member(kJob, 0);
  EXPECT_NE(next, first);
  listen_to(next);
  listen_to(member(kJob, 1));
  expect_world(next, member(kJob, 1));
  expect_trained(next, 1);
  EXPECT_THAT(words_of(first), Not(HasSubstr("agree"))) << "it was over before the pod was killed";
}

TEST_F(TorchrunTest, AProgramThatFailsFailsUnderItsOwnWords) {
  Json job = example(1000);
  job["spec"]["template"]["spec"]["containers"][0]["args"] = {"--steps", "many"};
  job["spec"]["failurePolicy"]["budgets"] =
      Json::array({{{"class", "Application"}, {"maxRestarts", 0}, {"windowSeconds", 3600}}});
  apply(job);
  ASSERT_TRUE(wait_until([&] { return condition(kJob, "Failed") == "True"; }, kTraining))
      << job_status(kJob).dump(2);
  Json attempt = job_status(kJob)["attempts"][0];
  EXPECT_EQ(attempt["class"], "Application") << attempt.dump(2);
  EXPECT_EQ(attempt["exitCode"], 1) << attempt.dump(2);
  // Of which torchrun says at its end which rank failed first, and how.
  EXPECT_THAT(attempt.value("message", ""), ContainsRegex("exitcode +: 2")) << attempt.dump(2);
}

}  // namespace
}  // namespace trainyard::cluster

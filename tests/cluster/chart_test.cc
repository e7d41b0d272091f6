// The chart where kubelets run what it makes: `helm test` tells an operator that runs jobs from one
// that does not; and what becomes of a running job when the operator under it is upgraded, rolled
// out anew, and uninstalled: nothing.
#include <filesystem>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/paths.h"
#include "tests/support/saving_job_test.h"

namespace trainyard::cluster {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing_support::CommandResult;

constexpr char kSystem[] = "trainyard-system";
constexpr char kOperator[] = "deployment/trainyard-operator";
const std::string kChart = testing_support::source_path("charts/trainyard");
const std::string kValues = testing_support::source_path("tests/cluster/values.yaml");
constexpr std::chrono::minutes kHelmTimeout{3};
/// Kubelets bring what is mounted of a ConfigMap up to date within a minute or two.
constexpr std::chrono::seconds kMounted{180};

/// helm as a user has it, with the release of the tests.
class Helm {
 public:
  Helm(const testing_support::ControlPlane& plane, std::filesystem::path home)
      : program_(plane.folder() / "helm"),
        kubeconfig_(plane.kubeconfig()),
        home_(std::move(home)) {}

  CommandResult run(const std::vector<std::string>& arguments) const {
    testing_support::ChildProcess::Spec spec{.argv = {program_},
                                             .environment = {{"HELM_CACHE_HOME", home_ / "cache"},
                                                             {"HELM_CONFIG_HOME", home_ / "config"},
                                                             {"HELM_DATA_HOME", home_ / "data"},
                                                             {"KUBECONFIG", kubeconfig_}},
                                             .output = home_ / "helm-out",
                                             .errors = home_ / "helm-err"};
    spec.argv.insert(spec.argv.end(), arguments.begin(), arguments.end());
    spec.argv.insert(spec.argv.end(), {"--namespace", kSystem});
    return testing_support::run_command(spec, kHelmTimeout);
  }
  /// Waits for what it changes, and must succeed.
  void must(std::vector<std::string> arguments) const {
    arguments.insert(arguments.end(), {"--wait", "--timeout", "90s"});
    const CommandResult done = run(arguments);
    EXPECT_EQ(done.exit_code, 0) << arguments.front() << "\n" << done.output << done.errors;
  }
  /// The release as tests/cluster/cluster has made it, but for these values.
  void release(const std::string& values = "") const {
    std::vector<std::string> arguments = {"upgrade", "--install", "trainyard",
                                          kChart,    "--values",  kValues};
    if (!values.empty()) arguments.insert(arguments.end(), {"--set", values});
    must(std::move(arguments));
  }
  CommandResult test() const { return run({"test", "trainyard", "--timeout", "150s"}); }

 private:
  const std::filesystem::path program_, kubeconfig_, home_;
};

class HelmTestTest : public testing_support::ClusterTest {
 protected:
  void TearDown() override {
    if (IsSkipped()) return;
    helm().release();
    ClusterTest::TearDown();
  }
  Helm helm() const { return {plane(), folder()}; }

  /// `helm test` must fail; what its pod, which stays for that, has said.
  std::string failure() const {
    const CommandResult tested = helm().test();
    EXPECT_NE(tested.exit_code, 0) << tested.output;
    EXPECT_THAT(tested.output + tested.errors, HasSubstr("Failed"));
    EXPECT_EQ(get({"tj", "trainyard-test", "--namespace", kSystem}), Json())
        << "its job goes with it";
    return must({"logs", "trainyard-test", "--namespace", kSystem});
  }
  void expect_success() const {
    const CommandResult tested = helm().test();
    EXPECT_EQ(tested.exit_code, 0) << tested.output << tested.errors << operator_log();
    EXPECT_THAT(tested.output, HasSubstr("Succeeded"));
  }
};

TEST_F(HelmTestTest, RunsAJobToItsEndAndLeavesNothing) {
  expect_success();
  EXPECT_THAT(operator_log(), HasSubstr(R"("job":"trainyard-test")")) << "it was the operator's";
  const std::string kinds = "pod,serviceaccount,role,rolebinding,configmap,service,tj";
  EXPECT_TRUE(wait_until([&] {
    return must({"get", kinds, "--namespace", kSystem, "-o", "name"}).find("trainyard-test") ==
           std::string::npos;
  })) << must({"get", kinds, "--namespace", kSystem});
}

TEST_F(HelmTestTest, FailsWhereTheOperatorOrTheNodesRunNoJob) {
  const std::string soon = "test.timeoutSeconds=15";
  helm().release(soon + ",replicas=0");
  EXPECT_THAT(failure(),
              AllOf(HasSubstr("waited 15 s"), HasSubstr("without a status from an operator")));

  helm().release(soon);
  must({"delete", "clusterrolebinding", "trainyard-operator"});
  EXPECT_THAT(failure(), HasSubstr("waited 15 s")) << "an operator that runs but may do nothing";

  helm().release(soon + ",test.nodeSelector.nowhere=yes");
  EXPECT_THAT(failure(), HasSubstr("waited 15 s")) << "pods that no node takes";

  helm().release();
  expect_success();
}

class ChartTest : public testing_support::SavingJobTest {
 protected:
  void TearDown() override {
    if (IsSkipped()) return;
    helm().release();
    SavingJobTest::TearDown();
  }
  Helm helm() const { return {plane(), folder()}; }
  std::string leader() const {
    return must({"get", "pods", "--namespace", kSystem, "--selector", "trainyard.dev/leader=true",
                 "--field-selector=status.phase=Running", "--output=name"});
  }
  /// The leader of now knows what the job does, and has changed nothing of it.
  void expect_untouched(const std::set<std::string>& pods,
                        std::chrono::seconds deadline = kDeadline) const {
    const int64_t reached = newest_saved().step;
    EXPECT_TRUE(wait_until([&] { return step() > reached; }, deadline))
        << job_status(kJob).dump(2) << operator_log();
    EXPECT_EQ(names_of_pods(kJob), pods);
    EXPECT_EQ(job_status(kJob)["restarts"]["total"], 0) << job_status(kJob).dump(2);
    EXPECT_EQ(generation(), 1);
  }
};

TEST_F(ChartTest, ARunningJobDoesNotNoticeUpgradesAndRollouts) {
  const Json job = saving_job(2);
  ASSERT_TRUE(trains(job));
  const std::set<std::string> pods = names_of_pods(kJob);
  const std::string first = leader();
  helm().must({"upgrade", "trainyard", kChart, "--reuse-values", "--set", "replicas=2",
               "--set-string", "podAnnotations.round=2"});
  EXPECT_TRUE(wait_until([&] { return !leader().empty() && leader() != first; })) << first;
  expect_untouched(pods);

  const std::string second = leader();
  must({"rollout", "restart", "--namespace", kSystem, kOperator});
  must({"rollout", "status", "--namespace", kSystem, kOperator, "--timeout=90s"});
  EXPECT_TRUE(wait_until([&] { return !leader().empty() && leader() != second; })) << second;
  expect_untouched(pods);

  helm().must({"upgrade", "trainyard", kChart, "--reuse-values", "--set", "replicas=1"});
  expect_untouched(pods);
  expect_undisturbed(job);
}

TEST_F(ChartTest, AnUninstalledChartLeavesJobsThatTheNextOneTakesUp) {
  const Json job = saving_job(2);
  ASSERT_TRUE(trains(job));
  const std::set<std::string> pods = names_of_pods(kJob);
  helm().must({"uninstall", "trainyard"});
  EXPECT_TRUE(get({"crd", "trainingjobs.trainyard.dev"}).is_object());
  EXPECT_TRUE(get({"tj", kJob}).is_object());
  EXPECT_EQ(names_of_pods(kJob), pods);
  EXPECT_TRUE(get({"clusterrole", "trainyard-operator"}).is_null()) << "all else is gone";
  EXPECT_TRUE(saves(1, newest_saved().step)) << "nobody stops what trains";
  helm().release();
  // The next release has made an authority of its own, which agents have to hear of.
  expect_untouched(pods, kMounted);
  expect_undisturbed(job);
}

}  // namespace
}  // namespace trainyard::cluster

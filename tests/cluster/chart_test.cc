// What becomes of a running job when the operator under it is upgraded, rolled out anew, and
// uninstalled: nothing.
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/saving_job_test.h"

namespace trainyard::cluster {
namespace {

constexpr char kSystem[] = "trainyard-system";
constexpr char kOperator[] = "deployment/trainyard-operator";
constexpr std::chrono::minutes kHelmTimeout{3};
/// Kubelets bring what is mounted of a ConfigMap up to date within a minute or two.
constexpr std::chrono::seconds kMounted{180};

class ChartTest : public testing_support::SavingJobTest {
 protected:
  void TearDown() override {
    if (IsSkipped()) return;
    if (uninstalled_) install();
    SavingJobTest::TearDown();
  }

  void must_helm(std::vector<std::string> arguments) const {
    testing_support::ChildProcess::Spec spec{
        .argv = {plane().folder() / "helm"},
        .environment = {{"HELM_CACHE_HOME", folder() / "helm-cache"},
                        {"HELM_CONFIG_HOME", folder() / "helm-config"},
                        {"HELM_DATA_HOME", folder() / "helm-data"},
                        {"KUBECONFIG", plane().kubeconfig()}},
        .output = folder() / "helm-out",
        .errors = folder() / "helm-err"};
    spec.argv.insert(spec.argv.end(), arguments.begin(), arguments.end());
    spec.argv.insert(spec.argv.end(), {"--namespace", kSystem, "--wait", "--timeout", "90s"});
    const auto done = testing_support::run_command(spec, kHelmTimeout);
    EXPECT_EQ(done.exit_code, 0) << arguments.front() << "\n" << done.output << done.errors;
  }
  void install() {
    must_helm({"install", "trainyard", TRAINYARD_SOURCE_DIR "/charts/trainyard", "--values",
               TRAINYARD_SOURCE_DIR "/tests/cluster/values.yaml"});
    uninstalled_ = false;
  }
  void uninstall() {
    uninstalled_ = true;
    must_helm({"uninstall", "trainyard"});
  }
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

 private:
  bool uninstalled_ = false;
};

TEST_F(ChartTest, ARunningJobDoesNotNoticeUpgradesAndRollouts) {
  const Json job = saving_job(2);
  ASSERT_TRUE(trains(job));
  const std::set<std::string> pods = names_of_pods(kJob);
  const std::string first = leader();
  must_helm({"upgrade", "trainyard", TRAINYARD_SOURCE_DIR "/charts/trainyard", "--reuse-values",
             "--set", "replicas=2", "--set-string", "podAnnotations.round=2"});
  EXPECT_TRUE(wait_until([&] { return !leader().empty() && leader() != first; })) << first;
  expect_untouched(pods);

  const std::string second = leader();
  must({"rollout", "restart", "--namespace", kSystem, kOperator});
  must({"rollout", "status", "--namespace", kSystem, kOperator, "--timeout=90s"});
  EXPECT_TRUE(wait_until([&] { return !leader().empty() && leader() != second; })) << second;
  expect_untouched(pods);

  must_helm({"upgrade", "trainyard", TRAINYARD_SOURCE_DIR "/charts/trainyard", "--reuse-values",
             "--set", "replicas=1"});
  expect_untouched(pods);
  expect_undisturbed(job);
}

TEST_F(ChartTest, AnUninstalledChartLeavesJobsThatTheNextOneTakesUp) {
  const Json job = saving_job(2);
  ASSERT_TRUE(trains(job));
  const std::set<std::string> pods = names_of_pods(kJob);
  uninstall();
  EXPECT_TRUE(get({"crd", "trainingjobs.trainyard.dev"}).is_object());
  EXPECT_TRUE(get({"tj", kJob}).is_object());
  EXPECT_EQ(names_of_pods(kJob), pods);
  EXPECT_TRUE(get({"clusterrole", "trainyard-operator"}).is_null()) << "all else is gone";
  EXPECT_TRUE(saves(1, newest_saved().step)) << "nobody stops what trains";
  install();
  // The next release has made an authority of its own, which agents have to hear of.
  expect_untouched(pods, kMounted);
  expect_undisturbed(job);
}

}  // namespace
}  // namespace trainyard::cluster

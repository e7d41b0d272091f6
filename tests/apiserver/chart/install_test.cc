// helm install, upgrade, test and uninstall on a control plane of its own, into which nothing of
// ours was put before. Pods there are played by kwok: the operator and what `helm test` runs are
// started here, as the ServiceAccounts that the chart has made and with the command lines that it
// has rendered.
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/helm.h"
#include "tests/support/paths.h"

namespace trainyard::apiserver {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing_support::ChildEnd;
using testing_support::ChildProcess;
using testing_support::CommandResult;

constexpr char kCrd[] = "trainingjobs.trainyard.dev";

class ChartInstallTest : public testing_support::ChartTest {
 protected:
  static void SetUpTestSuite() {
    // Only this thread is there yet. To try it again and again, name a plane that was started with
    // TRAINYARD_BARE_PLANE=1.
    const char* bare = std::getenv("TRAINYARD_TEST_BARE_PLANE");  // NOLINT(concurrency-mt-unsafe)
    ::setenv("TRAINYARD_TEST_PLANE", bare == nullptr ? "" : bare,
             1);                               // NOLINT(concurrency-mt-unsafe)
    ::setenv("TRAINYARD_BARE_PLANE", "1", 1);  // NOLINT(concurrency-mt-unsafe)
    ChartTest::SetUpTestSuite();
  }

  void TearDown() override {
    operator_.reset();
    second_.reset();
    for (const char* release : {"second", "trainyard"})
      helm({"uninstall", release, "--ignore-not-found", "--wait"});
    kubectl({"delete", "crd", kCrd, "--ignore-not-found"});
    ChartTest::TearDown();
  }

  /// An operator as the Deployment's pod would run it.
  void start_operator() { operator_ = operator_of("trainyard-operator"); }
  std::unique_ptr<ChildProcess> operator_of(const std::string& name) const {
    const Json deployment = get({"deployment", name});
    if (!deployment.is_object()) {
      ADD_FAILURE() << "there is no Deployment " << name;
      return nullptr;
    }
    const std::string account = deployment["spec"]["template"]["spec"]["serviceAccountName"];
    ChildProcess::Spec spec{.argv = {testing_support::program_path("trainyard-operator"),
                                     "--kubeconfig", kubeconfig_of(account)},
                            .output = folder() / (name + "-out"),
                            .errors = folder() / (name + "-err")};
    for (const std::string& argument : testing_support::operator_arguments(deployment))
      spec.argv.push_back(argument);
    if (const std::string pod = pod_of(deployment); !pod.empty())
      spec.argv.insert(spec.argv.end(), {"--pod-name", pod});
    return std::make_unique<ChildProcess>(spec);
  }
  std::string operator_log(const std::string& name = "trainyard-operator") const {
    std::ifstream file(folder() / (name + "-err"));
    return {std::istreambuf_iterator<char>(file), {}};
  }
  /// Any pod of the Deployment; empty: there is none yet.
  std::string pod_of(const Json& deployment) const {
    std::string selector;
    for (const auto& [label, value] : deployment["spec"]["selector"]["matchLabels"].items())
      selector += (selector.empty() ? "" : ",") + label + "=" + value.get<std::string>();
    const Json found = get({"pods", "--selector", selector});
    if (!found.is_object() || found["items"].empty()) return "";
    return found["items"][0]["metadata"]["name"];
  }

  /// `helm test`, with a kubelet played for its pod and for the pods of its job, which end with
  /// that code.
  CommandResult helm_test(int exit_code) {
    const ChildProcess::Spec spec = helm_spec({"test", "trainyard", "--timeout", "100s"});
    ChildProcess helm(spec);
    std::unique_ptr<ChildProcess> submit;
    submitted_.clear();
    std::optional<ChildEnd> end;
    EXPECT_TRUE(wait_until(
        [&] {
          play_submit(submit);
          for (const Json& pod : pods("trainyard-test")) {
            if (pod["status"].value("phase", "") == "Running")
              end_pod(pod["metadata"]["name"], exit_code);
          }
          return (end = helm.wait(std::chrono::milliseconds(0))).has_value();
        },
        std::chrono::seconds(120)));
    const auto text = [](const std::filesystem::path& path) {
      std::ifstream file(path);
      return std::string(std::istreambuf_iterator<char>(file), {});
    };
    submitted_ += text(folder() / "submit-out") + text(folder() / "submit-err");
    return {end && end->signal == 0 ? end->exit_code : -1, text(spec.output), text(spec.errors)};
  }

  /// As a kubelet does. The pod may be gone by now: that of a job that starts again or is removed.
  void end_pod(const std::string& name, int exit_code) const {
    const Json ended = {{"exitCode", exit_code}};
    const Json container = {{"name", "trainer"}, {"image", ""},
                            {"imageID", ""},     {"ready", false},
                            {"restartCount", 0}, {"state", {{"terminated", ended}}}};
    const Json status = {{"phase", exit_code == 0 ? "Succeeded" : "Failed"},
                         {"containerStatuses", Json::array({container})}};
    kubectl({"patch", "pod", name, "--subresource=status", "--type=merge", "-p",
             Json({{"status", status}}).dump()});
  }

  static Json compliant(Json job) {
    Json& spec = job["spec"]["template"]["spec"];
    spec["securityContext"] = {{"runAsNonRoot", true},
                               {"seccompProfile", {{"type", "RuntimeDefault"}}}};
    spec["containers"][0]["securityContext"] = {{"allowPrivilegeEscalation", false},
                                                {"capabilities", {{"drop", {"ALL"}}}}};
    return job;
  }
  bool may(const std::string& verb, const std::string& what, const std::string& ns) const {
    return kubectl({"auth", "can-i", verb, what, "--namespace", ns, "--quiet",
                    "--as=system:serviceaccount:" + name_space() + ":trainyard-operator"})
               .exit_code == 0;
  }

  /// Strategy by which the Deployment's pods are replaced.
  std::string strategy_of(const std::string& name) const {
    return get({"deployment", name})["spec"]["strategy"]["type"];
  }

  std::unique_ptr<ChildProcess> operator_, second_;
  std::string submitted_;  ///< what the pod of `helm test` said

 private:
  /// The pod of `helm test` as a kubelet would run it: its container's arguments, its
  /// ServiceAccount, the ConfigMap's file in place of the mounted one.
  void play_submit(std::unique_ptr<ChildProcess>& submit) {
    if (!submit) {
      const Json pod = get({"pod", "trainyard-test"});
      const Json map = get({"configmap", "trainyard-test"});
      if (!pod.is_object() || !map.is_object() || pod["metadata"].contains("deletionTimestamp"))
        return;
      if (pod["status"].value("phase", "") != "Running") return;
      std::ofstream(folder() / "job.yaml") << map["data"]["job.yaml"].get<std::string>();
      ChildProcess::Spec spec{.argv = {testing_support::program_path("trainyard-operator")},
                              .output = folder() / "submit-out",
                              .errors = folder() / "submit-err"};
      for (std::string argument : pod["spec"]["containers"][0]["args"]) {
        if (argument.ends_with("/job.yaml")) argument = folder() / "job.yaml";
        spec.argv.push_back(argument);
      }
      spec.argv.insert(spec.argv.end(),
                       {"--kubeconfig", kubeconfig_of(pod["spec"]["serviceAccountName"])});
      submit = std::make_unique<ChildProcess>(spec);
      return;
    }
    const auto end = submit->wait(std::chrono::milliseconds(0));
    if (!end || told_) return;
    told_ = true;
    const char* phase = end->signal == 0 && end->exit_code == 0 ? "Succeeded" : "Failed";
    must({"patch", "pod", "trainyard-test", "--subresource=status", "--type=merge", "-p",
          Json({{"status", {{"phase", phase}}}}).dump()});
  }

  bool told_ = false;

 protected:
  void again() { told_ = false; }
};

TEST_F(ChartInstallTest, AReleaseFromInstallationToRemoval) {
  const std::string notes = must_helm({"install", "trainyard", chart(), "--wait", "--timeout=60s"});
  EXPECT_THAT(notes, AllOf(HasSubstr("rollout status deployment/trainyard-operator"),
                           HasSubstr("helm test trainyard --namespace " + name_space()),
                           HasSubstr("kubectl get trainingjobs --watch --all-namespaces"),
                           HasSubstr("kubectl delete crd trainingjobs.trainyard.dev")));
  start_operator();
  const CommandResult tested = helm_test(0);
  EXPECT_EQ(tested.exit_code, 0) << tested.output << tested.errors << submitted_ << operator_log();
  EXPECT_THAT(tested.output, HasSubstr("Succeeded"));
  EXPECT_THAT(submitted_, AllOf(HasSubstr("created"), HasSubstr("Complete")));
  EXPECT_TRUE(wait_until([&] {
    const std::string left = get({"pod,sa,role,rolebinding,tj"}).dump() +
                             get({"configmap", "--selector", "!trainyard.dev/ledgers"}).dump();
    return left.find("trainyard-test") == std::string::npos;
  })) << must({"get", "pod,sa,role,rolebinding,configmap,tj"});

  must_with({"apply"}, compliant(job_manifest("mine", 2)).dump());
  ASSERT_TRUE(reaches("mine", "Running")) << operator_log();
  must_helm({"upgrade", "trainyard", chart(), "--wait", "--timeout=60s", "--set",
             "log.level=debug,replicas=2"});
  EXPECT_EQ(get({"deployment", "trainyard-operator"})["status"]["readyReplicas"], 2);
  EXPECT_TRUE(runs("mine", 2, 0)) << "an upgrade does nothing to jobs";

  must_helm({"uninstall", "trainyard", "--wait"});
  EXPECT_EQ(get({"crd", kCrd})["kind"], "CustomResourceDefinition");
  EXPECT_EQ(pods("mine").size(), 2U);
  for (const char* kind : {"deployment", "service", "serviceaccount", "role", "rolebinding",
                           "clusterrole", "clusterrolebinding", "secret"}) {
    EXPECT_THAT(must({"get", kind, "-l", "app.kubernetes.io/instance=trainyard", "-o", "name"}),
                testing::IsEmpty());
  }

  // Of the same name and namespace the next one takes the definition over; told so, it takes it
  // along.
  must_helm({"install", "trainyard", chart(), "--set", "crds.keep=false"});
  EXPECT_EQ(get({"tj", "mine"})["kind"], "TrainingJob");
  must_helm({"uninstall", "trainyard", "--wait"});
  EXPECT_TRUE(wait_until([&] { return kubectl({"get", "crd", kCrd}).exit_code != 0; }));
}

TEST_F(ChartInstallTest, HelmTestFailsWhereJobsDoNotRun) {
  must_helm({"install", "trainyard", chart(), "--set", "test.timeoutSeconds=10"});
  const CommandResult without = helm_test(0);
  EXPECT_NE(without.exit_code, 0) << without.output;
  EXPECT_THAT(submitted_,
              AllOf(HasSubstr("waited 10 s"), HasSubstr("without a status from an operator")));
  EXPECT_EQ(get({"pod", "trainyard-test"})["status"]["phase"], "Failed")
      << "it stays, to be looked at";
  EXPECT_NE(kubectl({"get", "tj", "trainyard-test"}).exit_code, 0);

  again();
  start_operator();
  const CommandResult failing = helm_test(2);
  EXPECT_NE(failing.exit_code, 0) << failing.output << submitted_;
  must_helm({"upgrade", "trainyard", chart(), "--set", "test.timeoutSeconds=90"});
  again();
  const CommandResult well = helm_test(0);
  EXPECT_EQ(well.exit_code, 0) << well.output << well.errors << submitted_ << operator_log();
}

TEST_F(ChartInstallTest, RightsAreGivenInTheNamespacesThatAreServed) {
  const std::string other = name_space() + "-other";
  must({"create", "namespace", other});
  must_helm({"install", "trainyard", chart(), "--set",
             "watchNamespaces={" + name_space() + "},rbac.nodes=false"});
  EXPECT_TRUE(wait_until([&] { return may("create", "pods", name_space()); }));
  EXPECT_FALSE(may("create", "pods", other));
  EXPECT_FALSE(may("list", "nodes", name_space()));
  EXPECT_FALSE(may("get", "secrets", name_space()));
  EXPECT_FALSE(may("list", "trainingjobs.trainyard.dev", other));
  start_operator();
  must_with({"apply"}, compliant(job_manifest("mine", 2)).dump());
  EXPECT_TRUE(reaches("mine", "Running")) << operator_log();
  must_helm({"upgrade", "trainyard", chart(), "--reuse-values", "--set", "rbac.nodes=true"});
  EXPECT_TRUE(wait_until([&] { return may("list", "nodes", name_space()); }));
  EXPECT_FALSE(may("delete", "nodes", name_space()));
  kubectl({"delete", "namespace", other, "--wait=false"});
}

/// Each leads by a Lease of its own, and the Service of each finds it by the label of its pod.
TEST_F(ChartInstallTest, TwoReleasesOfOneNamespaceBothServeTheirJobs) {
  const std::string other = name_space() + "-other";
  must({"create", "namespace", other});
  must_helm({"install", "trainyard", chart(), "--wait", "--timeout=60s", "--set",
             "watchNamespaces={" + name_space() + "}"});
  must_helm({"install", "second", chart(), "--wait", "--timeout=60s", "--set",
             "crds.enabled=false,watchNamespaces={" + other + "}"});
  const auto leaders = [&] {
    return must({"get", "pods", "--selector", "trainyard.dev/leader=true", "-o", "name"});
  };
  start_operator();
  ASSERT_TRUE(wait_until([&] { return !leaders().empty(); })) << operator_log();
  EXPECT_THAT(leaders(), HasSubstr("pod/trainyard-operator-"));
  second_ = operator_of("second-trainyard-operator");
  ASSERT_TRUE(wait_until([&] { return leaders().find("pod/second-") != std::string::npos; }))
      << operator_log("second-trainyard-operator");
  EXPECT_THAT(leaders(), HasSubstr("pod/trainyard-operator-")) << "it leads all the same";
  for (const std::string& ns : {name_space(), other}) {
    must_with({"apply", "--namespace", ns}, compliant(job_manifest("mine", 2)).dump());
    EXPECT_TRUE(wait_until([&] {
      const Json job = get({"tj", "mine", "--namespace", ns});
      return job.is_object() && job.value("status", Json::object()).value("phase", "") == "Running";
    })) << ns
        << operator_log() << operator_log("second-trainyard-operator");
  }
  kubectl({"delete", "namespace", other, "--wait=false"});
}

/// Pods that were made before Leases had the names of releases would lead beside those of now.
TEST_F(ChartInstallTest, WhoIsElectedByAnotherLeaseEndsFirst) {
  const auto forget_lease = [this](const std::string& name) {
    must({"patch", "deployment", name, "--type=json", "-p",
          R"([{"op": "remove", "path": "/spec/template/spec/containers/0/args/1"}])"});
  };
  for (const std::string release : {"second", "trainyard"})
    must_helm({"install", release, chart(), "--set", "crds.enabled=false"});
  EXPECT_EQ(strategy_of("second-trainyard-operator"), "RollingUpdate");
  forget_lease("second-trainyard-operator");
  forget_lease("trainyard-operator");
  for (const std::string release : {"second", "trainyard"})
    must_helm({"upgrade", release, chart(), "--reuse-values"});
  EXPECT_EQ(strategy_of("second-trainyard-operator"), "Recreate");
  EXPECT_EQ(strategy_of("trainyard-operator"), "RollingUpdate") << "its Lease has kept its name";
  must_helm({"upgrade", "second", chart(), "--reuse-values"});
  EXPECT_EQ(strategy_of("second-trainyard-operator"), "RollingUpdate");
}

TEST_F(ChartInstallTest, AnUpgradeLeavesTheCertificatesOfTheControlStream) {
  must_helm({"install", "trainyard", chart(), "--set", "control.enabled=true"});
  EXPECT_FALSE(get({"secret", "trainyard-control-tls"}).contains("data"));
  must({"patch", "secret", "trainyard-control-tls", "--type=merge", "-p",
        R"({"data": {"tls.key": "c2VjcmV0"}})"});
  must_helm({"upgrade", "trainyard", chart(), "--reuse-values", "--set", "replicas=2"});
  EXPECT_EQ(get({"secret", "trainyard-control-tls"})["data"]["tls.key"], "c2VjcmV0");
  EXPECT_TRUE(
      wait_until([&] { return may("update", "secrets/trainyard-control-tls", name_space()); }));
  EXPECT_FALSE(may("get", "secrets/another", name_space()));
}

}  // namespace
}  // namespace trainyard::apiserver

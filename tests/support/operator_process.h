#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/support/control_plane.h"

namespace trainyard::testing_support {

/// The user whom the API server sees in the operator's requests.
inline constexpr char kOperatorUser[] = "system:serviceaccount:trainyard-system:trainyard-operator";

/// `trainyard-operator` as it is shipped, against a control plane, under its own ServiceAccount
/// with the rights of manifests/rbac.yaml and no others. Ended on destruction.
class OperatorProcess {
 public:
  /// Starts it; files go into `folder`. It acts on the namespaces given.
  OperatorProcess(const ControlPlane& plane, std::filesystem::path folder,
                  const std::vector<std::string>& namespaces,
                  const std::vector<std::string>& options = {});

  ChildProcess& process() { return *process_; }
  /// Asks it to end; its exit code, or -1 when it does not end in time.
  int stop();
  /// What it has said so far.
  std::string log() const;

 private:
  std::filesystem::path folder_;
  std::unique_ptr<ChildProcess> process_;
};

/// Writes a kubeconfig with a fresh token of the operator's ServiceAccount.
void write_operator_kubeconfig(const ControlPlane& plane, const std::filesystem::path& path);

/// A test of training jobs: what they are made of and what becomes of them.
class JobTest : public ApiServerTest {
 protected:
  /// A job of `nodes` pods of one container, as JSON that a test changes and applies.
  static Json job_manifest(const std::string& name, int nodes);
  void apply(const Json& job) const;
  /// kubectl patch of a job's spec.
  void patch(const std::string& job, const Json& spec) const;
  /// The pods of a job that are not being deleted.
  std::vector<Json> pods(const std::string& job) const;
  std::set<std::string> names_of_pods(const std::string& job) const;
  Json job_status(const std::string& job) const;
  /// "True", "False", "Unknown" or, where there is none, "".
  std::string condition(const std::string& job, const std::string& type) const;
  std::string reason(const std::string& job, const std::string& type) const;
  /// Waits for a condition of that status; says what was there instead.
  ::testing::AssertionResult reaches(const std::string& job, const std::string& type,
                                     const std::string& status = "True") const;
  /// Waits until that many pods are ready and that many restarts are counted.
  ::testing::AssertionResult runs(const std::string& job, int ready, int restarts) const;
  /// As a kubelet does: the container `trainer` of the pod has ended with that code.
  void end_container(const std::string& pod, int exit_code, const std::string& message = "") const;
};

/// A test with an operator of its own, which sees the test's namespace alone.
class OperatorTest : public JobTest {
 protected:
  void SetUp() override;
  void TearDown() override;

  OperatorProcess& running_operator() { return *operator_; }
  /// A new process in place of one that has ended.
  void restart_operator();

 private:
  std::unique_ptr<OperatorProcess> operator_;
  int starts_ = 0;
};

}  // namespace trainyard::testing_support

#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "tests/support/control_plane.h"
#include "tests/support/http_client.h"

namespace trainyard::testing_support {

/// The user whom the API server sees in the operator's requests.
inline constexpr char kOperatorUser[] = "system:serviceaccount:trainyard-system:trainyard-operator";

/// Which operator reaches the API server, by which way and as whom.
struct OperatorAccess {
  std::string server;                ///< URL; empty: the plane's own
  std::filesystem::path token_file;  ///< read by the operator; empty: a fresh token is written down
  std::filesystem::path program;     ///< of another build; empty: that of this one
};

/// `trainyard-operator` as it is shipped, against a control plane, under its own ServiceAccount
/// with the rights of manifests/install.yaml and no others. Ended on destruction.
class OperatorProcess {
 public:
  /// Starts it; files go into `folder`. It acts on the namespaces given.
  OperatorProcess(const ControlPlane& plane, std::filesystem::path folder,
                  const std::vector<std::string>& namespaces,
                  const std::vector<std::string>& options = {}, const OperatorAccess& access = {});
  /// With a kubeconfig that is there already.
  OperatorProcess(const std::filesystem::path& kubeconfig, std::filesystem::path folder,
                  const std::vector<std::string>& namespaces,
                  const std::vector<std::string>& options = {});

  ChildProcess& process() { return *process_; }
  /// Asks it to end; its exit code, or -1 when it does not end in time.
  int stop();
  /// What it has said so far.
  std::string log() const;
  /// What the first entry of its log with that message has under `key`; empty: there is none yet.
  std::string said(const std::string& message, const std::string& key) const;
  /// What it serves there ("/metrics", "/healthz", "/readyz"); status 0 while nobody answers.
  HttpAnswer page(const std::string& path) const;

 private:
  void start(const std::filesystem::path& kubeconfig, const std::vector<std::string>& namespaces,
             const std::vector<std::string>& options, const std::filesystem::path& program = {});

  std::filesystem::path folder_;
  std::unique_ptr<ChildProcess> process_;
};

/// Writes a kubeconfig for the operator's ServiceAccount.
void write_operator_kubeconfig(const ControlPlane& plane, const std::filesystem::path& path,
                               const OperatorAccess& access = {});

/// A job of `nodes` pods of one container, as JSON that a test changes and applies.
nlohmann::json job_of(const std::string& name, int nodes);

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
  /// The name of the pod that is the job's member of that index; fails the test if there is none.
  std::string member(const std::string& job, int index) const;
  Json job_status(const std::string& job) const;
  /// "True", "False", "Unknown" or, where there is none, "".
  std::string condition(const std::string& job, const std::string& type) const;
  std::string reason(const std::string& job, const std::string& type) const;
  std::string message(const std::string& job, const std::string& type) const;
  /// Waits for a condition of that status; says what was there instead.
  ::testing::AssertionResult reaches(const std::string& job, const std::string& type,
                                     const std::string& status = "True") const;
  /// Waits until that many pods are ready and that many restarts are counted.
  ::testing::AssertionResult runs(const std::string& job, int ready, int restarts) const;
  /// As a kubelet does: the container `trainer` of the pod has ended with that code. `conditions`
  /// are what is said of the pod beside.
  void end_container(const std::string& pod, int exit_code, const std::string& message = "") const;
  void end_container(const std::string& pod, int exit_code, const std::string& message,
                     const Json& conditions) const;
  /// Makes `count` more ready nodes for the pods of jobs that are placed there alone (label and
  /// taint `site=<site>`), each with room for `pods` pods. Nobody plays their kubelets unless
  /// `kubelets`. They go with the test.
  void make_nodes(const std::string& site, int count, int pods, bool kubelets);
  /// Says for the nodes of make_nodes() that they are alive, as kubelets do every ten seconds: for
  /// tests that last longer than the control plane waits for such a word.
  void renew_leases_of_nodes() const;
  /// The claim `ckpt`, bound to a volume that only fake kubelets mount.
  void make_claim() const;
  /// The job's pods go to the nodes of that site alone, whatever becomes of these.
  static void place(Json& job, const std::string& site);
  /// Nobody beats the heart of the node any more, and it is not ready.
  void lose_node(const std::string& name) const;
  void TearDown() override;

 private:
  std::set<std::string> nodes_;
};

/// A test with an operator of its own, which sees the test's namespace alone.
class OperatorTest : public JobTest {
 protected:
  void SetUp() override;
  void TearDown() override;

  OperatorProcess& running_operator() { return *operator_; }
  /// A new process in place of the one before, which is killed where it still runs.
  void restart_operator(const OperatorAccess& access = {},
                        const std::vector<std::string>& options = {});

 private:
  std::unique_ptr<OperatorProcess> operator_;
  int starts_ = 0;
};

}  // namespace trainyard::testing_support

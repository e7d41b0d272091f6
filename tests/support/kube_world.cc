#include "tests/support/kube_world.h"

#include <random>
#include <string>
#include <thread>

#include <nlohmann/json.hpp>

#include "common/base/clock.h"
#include "common/log/log.h"
#include "common/text/rfc3339.h"
#include "operator/cluster/kube_cluster.h"
#include "operator/kube/client.h"
#include "operator/kube/config.h"
#include "operator/kube/http_transport.h"
#include "tests/support/extent.h"

namespace trainyard::testing_support {
namespace {

using nlohmann::json;

constexpr std::chrono::seconds kPatience{60};
constexpr std::chrono::milliseconds kLook{20};
constexpr kube::Resource kServiceAccounts{"", "v1", "serviceaccounts", "ServiceAccount"};
constexpr char kJobName[] = "job";

double random_fraction() {
  thread_local std::mt19937_64 engine(test_seed());
  return std::uniform_real_distribution<double>(0, 1)(engine);
}

template <class T>
T must(kube::ApiResult<T> result, std::string_view what) {
  if (!result) throw std::runtime_error(result.error().to_error(what).message);
  return *std::move(result);
}

json job_object() {
  return {{"metadata", {{"name", kJobName}}},
          {"spec",
           {{"numNodes", 2},
            {"agent", "None"},
            {"template",
             {{"spec",
               {{"containers", json::array({{{"name", "trainer"},
                                             {"image", "trainer:1"},
                                             {"command", json::array({"train"})}}})}}}}}}}};
}

class KubeWorld final : public World {
 public:
  explicit KubeWorld(std::shared_ptr<const ControlPlane> plane) : plane_(std::move(plane)) {
    auto config = kube::load_kubeconfig(plane_->kubeconfig(), "");
    if (!config) throw std::runtime_error(config.error().message);
    auto transport = kube::make_http_transport(*config, clock_, "trainyard-test");
    if (!transport) throw std::runtime_error(transport.error().message);
    transport_ = *std::move(transport);
    client_ = std::make_unique<kube::Client>(*transport_, clock_, kube::Client::Options());
    make_namespace();
    must(client_->create(kube::kTrainingJobs, namespace_, job_object()), "create the job");
    cluster::KubeCluster::Options options;
    options.client = client_.get();
    options.clock = &clock_;
    options.logger = logger_.get();
    options.namespaces = {namespace_};
    options.instance = "test";
    options.random = random_fraction;
    cluster_ = std::make_unique<cluster::KubeCluster>(std::move(options));
    cluster_->start();
    const Status synced = cluster_->wait_synced(kPatience, {});
    if (!synced) throw std::runtime_error(synced.error().message);
  }

  ~KubeWorld() override {
    cluster_.reset();
    // The server clears what is in it in its own time.
    static_cast<void>(client_->remove(kube::kNamespaces, {"", namespace_}, {}));
  }

  control::Cluster& cluster() override { return *cluster_; }
  control::JobKey key() const override { return {namespace_, kJobName}; }
  void move_on() override { std::this_thread::sleep_for(kLook); }

  void finish_pod(const std::string& name, int exit_code) override {
    const std::string now =
        text::format_time(std::chrono::floor<std::chrono::seconds>(clock_.now()));
    const auto deadline = clock_.mono() + kPatience;
    while (clock_.mono() < deadline) {
      json pod = must(client_->get(kube::kPods, {namespace_, name}), "get the pod");
      pod["status"]["phase"] = exit_code == 0 ? "Succeeded" : "Failed";
      pod["status"]["conditions"] = json::array({{{"type", "Ready"}, {"status", "False"}}});
      pod["status"]["containerStatuses"] = json::array({{{"name", "trainer"},
                                                         {"image", "trainer:1"},
                                                         {"imageID", ""},
                                                         {"ready", false},
                                                         {"restartCount", 0},
                                                         {"state",
                                                          {{"terminated",
                                                            {{"exitCode", exit_code},
                                                             {"reason", "Error"},
                                                             {"startedAt", now},
                                                             {"finishedAt", now}}}}}}});
      const auto updated = client_->update_status(kube::kPods, pod);
      if (updated) return;
      // The fake kubelet writes, too.
      if (updated.error().reason != kube::Reason::kConflict) must(updated, "end the pod");
    }
    throw std::runtime_error("pod " + name + " could not be ended in time");
  }

 private:
  /// With the account that pods run under, without which the server admits none.
  void make_namespace() {
    const json made = must(
        client_->create(kube::kNamespaces, "", {{"metadata", {{"generateName", "conformance-"}}}}),
        "create a namespace");
    namespace_ = made["metadata"]["name"];
    const auto deadline = clock_.mono() + kPatience;
    while (!client_->get(kServiceAccounts, {namespace_, "default"})) {
      if (clock_.mono() > deadline) throw std::runtime_error("no default ServiceAccount in time");
      move_on();
    }
  }

  const std::shared_ptr<const ControlPlane> plane_;
  const SystemClock clock_;
  const std::unique_ptr<Logger> logger_ = Logger::to_nowhere();
  std::unique_ptr<kube::Transport> transport_;
  std::unique_ptr<kube::Client> client_;
  std::string namespace_;
  std::unique_ptr<cluster::KubeCluster> cluster_;
};

}  // namespace

std::unique_ptr<World> make_kube_world(std::shared_ptr<const ControlPlane> plane) {
  return std::make_unique<KubeWorld>(std::move(plane));
}

}  // namespace trainyard::testing_support

#include "tests/support/proxy_lanes.h"

#include <algorithm>
#include <atomic>
#include <fstream>
#include <iterator>
#include <set>
#include <thread>

#include <nlohmann/json.hpp>

#include "operator/kube/config.h"
#include "operator/kube/http_transport.h"
#include "tests/support/audit_log.h"
#include "tests/support/audited_plane.h"

namespace trainyard::testing_support {
namespace {

using nlohmann::json;

/// The items of several lists.
json joined(const kube::Client& admin, const kube::Resource& resource,
            const std::vector<std::string>& namespaces) {
  json items = json::array();
  for (const std::string& ns : namespaces) {
    const auto page = admin.list(resource, ns, {.limit = 0});
    EXPECT_TRUE(page.has_value()) << page.error().message;
    if (!page) continue;
    for (const json& item : page->items)
      items.push_back(item);
  }
  return {{"items", items}};
}

}  // namespace

void ProxyTest::SetUp() {
  ApiServerTest::SetUp();
  const auto config = kube::load_kubeconfig(plane().kubeconfig(), "");
  ASSERT_TRUE(config.has_value()) << config.error().message;
  auto transport = kube::make_http_transport(*config, clock_, "trainyard-test");
  ASSERT_TRUE(transport.has_value()) << transport.error().message;
  transport_ = *std::move(transport);
  admin_ = std::make_unique<kube::Client>(*transport_, clock_, kube::Client::Options{});
  write_operator_kubeconfig(plane(), folder() / "kubeconfig");
  std::ifstream file(folder() / "kubeconfig");
  kubeconfig_.assign(std::istreambuf_iterator<char>(file), {});
  await_admission();
}

/// For up to 30 s after TrainingJobs have been defined an API server forbids pods that they own:
/// the admission plugin OwnerReferencesPermissionEnforcement does not know them yet.
void ProxyTest::await_admission() const {
  const auto config = kube::load_kubeconfig(folder() / "kubeconfig", "");
  ASSERT_TRUE(config.has_value()) << config.error().message;
  const auto transport = kube::make_http_transport(*config, clock_, "trainyard-test");
  ASSERT_TRUE(transport.has_value()) << transport.error().message;
  const kube::Client client(**transport, clock_, kube::Client::Options{});
  const json owner = {{"apiVersion", "trainyard.dev/v1alpha1"},
                      {"kind", "TrainingJob"},
                      {"name", "probe"},
                      {"uid", "probe"},
                      {"controller", true},
                      {"blockOwnerDeletion", true}};
  const json pod = {
      {"apiVersion", "v1"},
      {"kind", "Pod"},
      {"metadata", {{"name", "probe"}, {"ownerReferences", json::array({owner})}}},
      {"spec", {{"containers", json::array({{{"name", "probe"}, {"image", "probe"}}})}}}};
  EXPECT_TRUE(wait_until([&] {
    const auto tried =
        client.create(kube::kPods, name_space(), pod, {.dry_run = kube::DryRun::kServer});
    return tried || tried.error().message.find("RESTMapping") == std::string::npos;
  }));
}

void ProxyTest::TearDown() {
  if (admin_) {
    for (const std::string& violation : violations())
      ADD_FAILURE() << violation;
    for (const std::string& lane : lanes_) {
      const auto ended = admin_->remove(kube::kNamespaces, {"", lane}, {});
      EXPECT_TRUE(ended.has_value()) << ended.error().message;
    }
  }
  ApiServerTest::TearDown();
}

/// Of the lanes alone: other tests have the control plane, too.
std::vector<std::string> ProxyTest::violations() const {
  std::vector<AuditEvent> events = read_audit_log(plane().audit_log());
  const std::set<std::string> ours(lanes_.begin(), lanes_.end());
  std::erase_if(events, [&](const AuditEvent& event) { return !ours.contains(event.name_space); });
  return violations_on(plane(), events, joined(*admin_, kube::kPods, lanes_),
                       joined(*admin_, kube::kTrainingJobs, lanes_));
}

std::string ProxyTest::make_lane(const std::string& name) {
  const std::string lane = name_space() + "-" + name;
  const Status made = make_namespace(*admin_, lane);
  EXPECT_TRUE(made.has_value()) << made.error().message;
  const std::lock_guard lock(mutex_);
  lanes_.push_back(lane);
  return lane;
}

std::unique_ptr<ProxiedOperator> ProxyTest::make_operator(const std::string& name) {
  return std::make_unique<ProxiedOperator>(plane(), json::parse(kubeconfig_), folder() / name, name,
                                           ProxiedOperator::Options{});
}

std::unique_ptr<OperatorPair> ProxyTest::make_pair(const std::string& name) {
  const Status granted = OperatorPair::grant_lease(*admin_, name);
  EXPECT_TRUE(granted.has_value()) << granted.error().message;
  return std::make_unique<OperatorPair>(plane(), *admin_, json::parse(kubeconfig_), folder() / name,
                                        name);
}

void ProxyTest::in_lanes(int64_t count, const std::function<std::string(int, int64_t)>& work,
                         int lanes) {
  std::atomic<int64_t> next = 0;
  const auto run = [&](int lane) {
    for (int64_t item = next++; item < count; item = next++) {
      const std::string complaint = work(lane, item);
      if (!complaint.empty()) ADD_FAILURE() << complaint;
    }
  };
  std::vector<std::jthread> threads;
  for (int lane = 0; lane < lanes; ++lane)
    threads.emplace_back(run, lane);
}

}  // namespace trainyard::testing_support

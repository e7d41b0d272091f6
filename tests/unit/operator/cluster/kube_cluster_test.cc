#include "operator/cluster/kube_cluster.h"

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/manual_clock.h"

namespace trainyard::cluster {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr char kUid[] = "uid-of-job";

json pod_object(int index) {
  const std::string name = "train-" + std::to_string(index) + "-aaaaa";
  return {{"metadata",
           {{"name", name},
            {"namespace", "n"},
            {"uid", "uid-of-" + name},
            {"resourceVersion", "5"},
            {"labels",
             {{"trainyard.dev/job-name", "train"},
              {"trainyard.dev/job-uid", kUid},
              {"trainyard.dev/node-index", std::to_string(index)},
              {"trainyard.dev/created-generation", "2"},
              {"trainyard.dev/member", "true"}}},
            {"ownerReferences", json::array({{{"apiVersion", "trainyard.dev/v1alpha1"},
                                              {"kind", "TrainingJob"},
                                              {"name", "train"},
                                              {"uid", kUid},
                                              {"controller", true}}})}}},
          {"spec", {{"nodeName", "node"}, {"containers", json::array({{{"name", "trainer"}}})}}},
          {"status", {{"phase", "Running"}}}};
}

/// A job of two nodes whose second generation was whole, as another process has written down.
json job_object(const std::string& scheduled) {
  return {
      {"apiVersion", "trainyard.dev/v1alpha1"},
      {"kind", "TrainingJob"},
      {"metadata",
       {{"name", "train"}, {"namespace", "n"}, {"uid", kUid}, {"resourceVersion", "9"}}},
      {"spec",
       {{"numNodes", 2},
        {"agent", "None"},
        {"template",
         {{"spec",
           {{"containers",
             json::array(
                 {{{"name", "trainer"}, {"image", "i"}, {"command", json::array({"c"})}}})}}}}}}},
      {"status",
       {{"observedGeneration", 0},
        {"membership", {{"generation", 2}}},
        {"nodes", {{"target", 2}}},
        {"conditions", json::array({{{"type", "Scheduled"},
                                     {"status", scheduled},
                                     {"reason", "GangScheduled"},
                                     {"message", ""},
                                     {"lastTransitionTime", "2026-01-01T00:00:00Z"}}})}}}};
}

/// A watch in which nothing happens.
class SilentLines final : public kube::LineStream {
 public:
  explicit SilentLines(std::stop_token stop) : stop_(std::move(stop)) {}
  Result<std::optional<std::string>> next_line() override {
    std::unique_lock lock(mutex_);
    never_.wait(lock, stop_, [] { return false; });
    return Error{ErrorCode::kAborted, "asked to stop"};
  }

 private:
  std::mutex mutex_;
  std::condition_variable_any never_;
  std::stop_token stop_;
};

/// Lists what the watches have come to, and what the server really has.
class LaggingServer final : public kube::Transport {
 public:
  json job = job_object("True");
  std::vector<json> shown;  ///< pods, as far as the cache is
  std::vector<json> there;  ///< pods, as they are

  Result<kube::Response> send(const kube::Request& request,
                              const kube::Patience& /*patience*/) override {
    if (request.path.ends_with("/trainingjobs")) return list({job});
    if (!request.path.ends_with("/pods")) return list({});
    if (request.query.find("job-uid") == std::string::npos) return list(shown);
    const std::lock_guard lock(mutex_);
    questions_.push_back(request.query);
    return list(there);
  }
  Result<kube::Opened> open(const kube::Request& /*request*/,
                            const kube::Patience& patience) override {
    return kube::Opened{200, {}, std::nullopt, std::make_unique<SilentLines>(patience.stop)};
  }

  /// What was asked about one job's pods.
  std::vector<std::string> questions() const {
    const std::lock_guard lock(mutex_);
    return questions_;
  }

 private:
  static kube::Response list(const std::vector<json>& items) {
    const json body = {{"metadata", {{"resourceVersion", "9"}}}, {"items", items}};
    return {200, body.dump(), std::nullopt};
  }

  mutable std::mutex mutex_;
  std::vector<std::string> questions_;
};

class KubeClusterTest : public testing::Test {
 protected:
  /// The pods in a view of the job.
  std::vector<std::string> observed_pods() {
    KubeCluster::Options options;
    options.client = &client_;
    options.clock = &clock_;
    options.logger = logger_.get();
    options.namespaces = {"n"};
    options.random = [] { return 0.5; };
    KubeCluster cluster(std::move(options));
    cluster.start();
    EXPECT_TRUE(cluster.wait_synced(std::chrono::seconds(30), {}).has_value());
    const auto observed = cluster.observe({"n", "train"});
    EXPECT_TRUE(observed.has_value());
    std::vector<std::string> names;
    for (const control::ObservedPod& pod : observed->pods)
      names.push_back(pod.name);
    return names;
  }

  testing_support::ManualClock clock_;
  LaggingServer server_;
  kube::Client client_{server_, clock_, {}};
  std::unique_ptr<Logger> logger_ = Logger::to_nowhere();
};

TEST_F(KubeClusterTest, APodThatTheCacheHasNotShownYetIsNotTakenForGone) {
  server_.shown = {pod_object(1)};
  server_.there = {pod_object(0), pod_object(1)};
  EXPECT_THAT(observed_pods(), testing::UnorderedElementsAre("train-0-aaaaa", "train-1-aaaaa"));
  ASSERT_EQ(server_.questions().size(), 1U);
  EXPECT_THAT(server_.questions().front(), HasSubstr("node-index%20in%20%280%29"));
}

TEST_F(KubeClusterTest, APodThatTheServerHasNoMoreIsGone) {
  server_.shown = {pod_object(1)};
  EXPECT_THAT(observed_pods(), testing::ElementsAre("train-1-aaaaa"));
  EXPECT_EQ(server_.questions().size(), 1U);
}

TEST_F(KubeClusterTest, AWholeGangIsNotAskedFor) {
  server_.shown = {pod_object(0), pod_object(1)};
  EXPECT_EQ(observed_pods().size(), 2U);
  EXPECT_TRUE(server_.questions().empty());
}

TEST_F(KubeClusterTest, AGangThatIsStillToBeMadeIsNotAskedFor) {
  server_.job = job_object("False");
  server_.shown = {pod_object(1)};
  server_.there = {pod_object(0), pod_object(1)};
  EXPECT_EQ(observed_pods().size(), 1U);
  EXPECT_TRUE(server_.questions().empty());
}

}  // namespace
}  // namespace trainyard::cluster

#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "control/pod_spec.h"
#include "operator/cluster/kube_cluster.h"
#include "tests/support/manual_clock.h"
#include "tests/support/scripted_transport.h"

namespace trainyard::cluster {

/// Lists and watches as a test says, one version for all; every other call goes to `script`.
/// Thread-safe but for its public members, which are set before the caches begin.
class WatchedServer final : public kube::Transport {
 public:
  using Json = nlohmann::json;

  std::vector<Json> jobs;
  std::vector<Json> pods;
  std::vector<Json> nodes;
  std::map<std::string, std::vector<Json>> companions;  ///< by plural
  int nodes_status = 200;                               ///< of lists of nodes
  /// Which lists are refused, by their path, with which status; thread-safe.
  std::function<bool(const std::string& path)> forbids = [](const std::string&) { return false; };
  int refusal_status = 403;
  testing_support::ScriptedTransport script;

  /// An event for whoever watches these: "pods", "nodes", "trainingjobs".
  void push(const std::string& plural, const char* type, const Json& object) {
    const std::lock_guard lock(mutex_);
    lines_[plural].push_back(Json{{"type", type}, {"object", object}}.dump());
    more_.notify_all();
  }

  /// Waits until watches of all of these are open, by the ends of their paths; they were listed
  /// before.
  bool await_watches(const std::vector<std::string>& ends, std::chrono::seconds limit) {
    const auto is_watched = [&](const std::string& end) {
      return std::any_of(watched_.begin(), watched_.end(),
                         [&](const std::string& path) { return path.ends_with(end); });
    };
    std::unique_lock lock(mutex_);
    return more_.wait_for(lock, limit,
                          [&] { return std::all_of(ends.begin(), ends.end(), is_watched); });
  }

  Result<kube::Response> send(const kube::Request& request,
                              const kube::Patience& patience) override {
    const bool by_job = request.query.find("job-uid") != std::string::npos;
    if (request.method == kube::Method::kGet && !by_job && forbids(request.path)) {
      return refusal(refusal_status);
    }
    if (request.method == kube::Method::kGet && !by_job) {
      if (request.path.ends_with("/trainingjobs")) return list(jobs);
      if (request.path.ends_with("/pods")) return list(pods);
      for (const char* plural : {"/services", "/endpointslices", "/poddisruptionbudgets"}) {
        if (!request.path.ends_with(plural)) continue;
        const auto found = companions.find(plural + 1);
        return list(found == companions.end() ? std::vector<Json>() : found->second);
      }
      if (request.path.ends_with("/nodes")) {
        return nodes_status == 200 ? list(nodes) : refusal(nodes_status);
      }
    }
    return script.send(request, patience);
  }

  Result<kube::Opened> open(const kube::Request& request, const kube::Patience& patience) override {
    const std::string plural = request.path.substr(request.path.rfind('/') + 1);
    {
      const std::lock_guard lock(mutex_);
      watched_.insert(request.path);
      more_.notify_all();
    }
    return kube::Opened{
        200, {}, std::nullopt, std::make_unique<Lines>(*this, plural, patience.stop)};
  }

 private:
  class Lines final : public kube::LineStream {
   public:
    Lines(WatchedServer& server, std::string plural, std::stop_token stop)
        : server_(server), plural_(std::move(plural)), stop_(std::move(stop)) {}
    Result<std::optional<std::string>> next_line() override {
      std::unique_lock lock(server_.mutex_);
      std::deque<std::string>& lines = server_.lines_[plural_];
      if (!server_.more_.wait(lock, stop_, [&] { return !lines.empty(); })) {
        return Error{ErrorCode::kAborted, "asked to stop"};
      }
      std::string line = std::move(lines.front());
      lines.pop_front();
      return std::optional<std::string>(std::move(line));
    }

   private:
    WatchedServer& server_;
    const std::string plural_;
    const std::stop_token stop_;
  };

  static kube::Response refusal(int status) {
    const char* const reason = status == 403 ? "Forbidden" : "InternalError";
    return {status, testing_support::status_body(status, reason, "no"), std::nullopt};
  }

  static kube::Response list(const std::vector<Json>& items) {
    const Json body = {{"metadata", {{"resourceVersion", "9"}}}, {"items", items}};
    return {200, body.dump(), std::nullopt};
  }

  std::mutex mutex_;
  std::condition_variable_any more_;
  std::map<std::string, std::deque<std::string>> lines_;
  std::set<std::string> watched_;  ///< paths
};

/// A KubeCluster over such a server, and who was to be looked at.
class KubeClusterWorld : public testing::Test {
 protected:
  using Json = nlohmann::json;
  static constexpr char kUid[] = "uid-of-job";
  static constexpr std::chrono::seconds kPatience{60};

  static std::string pod_name(int index, const std::string& job_uid = kUid) {
    return control::pod_name("train", job_uid, index, 2);
  }
  /// A pod of the job that the operator made, running on "node".
  static Json pod_object(int index, const std::string& job_uid = kUid) {
    const std::string name = pod_name(index, job_uid);
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
              {"ownerReferences", Json::array({{{"apiVersion", "trainyard.dev/v1alpha1"},
                                                {"kind", "TrainingJob"},
                                                {"name", "train"},
                                                {"uid", job_uid},
                                                {"controller", true}}})}}},
            {"spec", {{"nodeName", "node"}, {"containers", Json::array({{{"name", "trainer"}}})}}},
            {"status", {{"phase", "Running"}}}};
  }

  /// A job of two nodes in its second generation; `scheduled`: whether that was whole.
  static Json job_object(const std::string& scheduled) {
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
               Json::array(
                   {{{"name", "trainer"}, {"image", "i"}, {"command", Json::array({"c"})}}})}}}}}}},
        {"status",
         {{"observedGeneration", 0},
          {"membership", {{"generation", 2}}},
          {"nodes", {{"target", 2}}},
          {"conditions", Json::array({{{"type", "Scheduled"},
                                       {"status", scheduled},
                                       {"reason", "GangScheduled"},
                                       {"message", ""},
                                       {"lastTransitionTime", "2026-01-01T00:00:00Z"}}})}}}};
  }

  static Json node_object(const std::string& name, int version, bool ready = true) {
    return {
        {"metadata",
         {{"name", name}, {"uid", "uid-of-" + name}, {"resourceVersion", std::to_string(version)}}},
        {"status",
         {{"conditions", Json::array({{{"type", "Ready"}, {"status", ready ? "True" : "False"}}})},
          {"allocatable", {{"pods", "10"}}}}}};
  }

  /// Begins to fill the caches.
  void begin() {
    KubeCluster::Options options;
    options.client = &client_;
    options.clock = &clock_;
    options.logger = logger_.get();
    options.namespaces = namespaces_;
    options.instance = "operator-7";
    options.random = [] { return 0.5; };
    options.pod_defaults = pod_defaults_;
    options.restarts_renew_image = restarts_renew_image_;
    cluster_ = std::make_unique<KubeCluster>(std::move(options));
    cluster_->set_listener([this](const control::JobKey& key) {
      const std::lock_guard lock(mutex_);
      heard_.push_back(key.name);
      heard_more_.notify_all();
    });
    cluster_->start();
  }
  /// Fills the caches; also those that nobody waits for: what a late first list lacks counts as
  /// lost.
  void start() {
    begin();
    EXPECT_TRUE(cluster_->wait_synced(kPatience, {}).has_value());
    EXPECT_TRUE(server_.await_watches({"/services", "/endpointslices", "/poddisruptionbudgets"},
                                      kPatience));
    const std::lock_guard lock(mutex_);
    heard_.clear();
  }

  /// The next `count` jobs that are to be looked at; fewer where they do not come in time.
  std::vector<std::string> hear(size_t count) {
    std::unique_lock lock(mutex_);
    heard_more_.wait_for(lock, kPatience, [&] { return heard_.size() >= count; });
    return std::exchange(heard_, {});
  }

  control::Observed look() {
    auto observed = cluster_->observe({"n", "train"});
    EXPECT_TRUE(observed.has_value()) << (observed ? "" : observed.error().message);
    return observed ? *std::move(observed) : control::Observed();
  }
  std::vector<std::string> names_of(const std::vector<control::ObservedPod>& pods) {
    std::vector<std::string> names;
    for (const control::ObservedPod& pod : pods)
      names.push_back(pod.name);
    return names;
  }

  render::PodDefaults pod_defaults_;
  bool restarts_renew_image_ = true;
  std::vector<std::string> namespaces_ = {"n"};  ///< that are watched; empty: all
  testing_support::ManualClock clock_;
  WatchedServer server_;
  kube::Client client_{server_, clock_, {}};
  std::unique_ptr<Logger> logger_ = Logger::to_nowhere();
  std::mutex mutex_;
  std::condition_variable heard_more_;
  std::vector<std::string> heard_;
  std::unique_ptr<KubeCluster> cluster_;
};

}  // namespace trainyard::cluster

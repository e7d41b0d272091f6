#include "tests/support/gang_workload.h"

#include <functional>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tests/support/operator_process.h"

namespace trainyard::testing_support {
namespace {

using nlohmann::json;

constexpr int kNodes = 4;
constexpr int kFewerNodes = 2;
constexpr std::chrono::milliseconds kLook{50};
constexpr char kMember[] = "trainyard.dev/member";

/// Looks until it holds; `what` says, at the end, what was awaited and what was there.
Status await(std::chrono::seconds patience, const std::function<Result<bool>()>& holds,
             const std::function<std::string()>& what) {
  const auto end = std::chrono::steady_clock::now() + patience;
  while (true) {
    TRAINYARD_ASSIGN(const bool there, holds());
    if (there) return {};
    if (std::chrono::steady_clock::now() >= end) {
      return Error{ErrorCode::kDeadline, fmt::format("{} s long: {}", patience.count(), what())};
    }
    std::this_thread::sleep_for(kLook);
  }
}

int64_t number(const json& object, const char* part, const char* key) {
  const auto found = object.find(part);
  return found != object.end() && found->is_object() ? found->value(key, int64_t{0}) : 0;
}

bool is_member(const json& pod) {
  const json& metadata = pod["metadata"];
  return !metadata.contains("deletionTimestamp") &&
         metadata.value("labels", json::object()).contains(kMember);
}

}  // namespace

GangWorkload::GangWorkload(const kube::Client& admin, std::string name_space, std::string job,
                           std::chrono::seconds patience)
    : admin_(admin), namespace_(std::move(name_space)), job_(std::move(job)), patience_(patience) {}

json GangWorkload::status() const {
  const auto job = admin_.get(kube::kTrainingJobs, {namespace_, job_});
  return job ? job->value("status", json::object()) : json::object();
}

Result<std::vector<json>> GangWorkload::pods() const {
  auto page =
      admin_.list(kube::kPods, namespace_, {.label_selector = "trainyard.dev/job-name=" + job_});
  if (!page) return page.error().to_error("pods of job " + job_);
  return std::move(page->items);
}

std::string GangWorkload::names_of_pods() const {
  const auto there = pods();
  if (!there) return " " + there.error().message;
  std::string names;
  for (const json& pod : *there)
    names +=
        " " + pod["metadata"]["name"].get<std::string>() + (is_member(pod) ? "" : " (no member)");
  return names;
}

Status GangWorkload::run() const {
  TRAINYARD_TRY(create());
  TRAINYARD_TRY(kill_a_pod());
  TRAINYARD_TRY(scale());
  return remove();
}

Status GangWorkload::create() const {
  json job = job_of(job_, kNodes);
  job["spec"]["elasticPolicy"] = {{"minNodes", 1}, {"scaleUpSnoozeSeconds", 0}};
  const auto made = admin_.create(kube::kTrainingJobs, namespace_, job);
  if (!made) return made.error().to_error("create job " + job_);
  return await_running(kNodes, 0, 0);
}

Result<std::string> GangWorkload::delete_a_pod() const {
  TRAINYARD_ASSIGN(const std::vector<json> there, pods());
  for (const json& pod : there) {
    if (!is_member(pod)) continue;
    const std::string name = pod["metadata"]["name"];
    const auto deleted = admin_.remove(kube::kPods, {namespace_, name}, {});
    if (!deleted) return deleted.error().to_error("kill pod " + name);
    return name;
  }
  return Error{ErrorCode::kNotFound, "job " + job_ + " has no pod to kill"};
}

Status GangWorkload::kill_a_pod() const {
  TRAINYARD_ASSIGN(const std::string victim, delete_a_pod());
  TRAINYARD_TRY(await_running(kNodes, 1, 0));
  json attempts = status().value("attempts", json::array());
  const std::string blamed = attempts.empty() ? "nobody" : attempts[0].value("podName", "nobody");
  // Of a pod that is gone before it was missed, its place in the gang is all that is known.
  if (!blamed.empty() && victim.starts_with(blamed)) return {};
  return Error{ErrorCode::kInternal, "the pod " + victim + " was killed, status blames " + blamed};
}

Status GangWorkload::scale() const {
  const auto patched = admin_.merge_patch(kube::kTrainingJobs, {namespace_, job_},
                                          {{"spec", {{"numNodes", kFewerNodes}}}}, {});
  if (!patched) return patched.error().to_error("scale job " + job_);
  return await_running(kFewerNodes, 1, 1);
}

Status GangWorkload::remove() const {
  const auto removed = admin_.remove(kube::kTrainingJobs, {namespace_, job_},
                                     {.propagation = kube::Propagation::kBackground});
  if (!removed) return removed.error().to_error("delete job " + job_);
  return await_gone();
}

Status GangWorkload::await_gone() const {
  const kube::ObjectName own{namespace_, job_};
  const auto is_gone = [&](const kube::Resource& resource) {
    const auto found = admin_.get(resource, own);
    return !found && found.error().reason == kube::Reason::kNotFound;
  };
  return await(
      patience_,
      [&]() -> Result<bool> {
        const auto left = pods();
        return left && left->empty() && is_gone(kube::kTrainingJobs) && is_gone(kube::kServices) &&
               is_gone(kube::kPodDisruptionBudgets);
      },
      [&] {
        return "job " + job_ +
               " is deleted, and its Service, its budget or pods are left:" + names_of_pods();
      });
}

Status GangWorkload::await_running(int64_t nodes, int64_t restarts, int64_t resizes) const {
  const auto holds = [&]() -> Result<bool> {
    const json now = status();
    const int64_t counted = number(now, "restarts", "total");
    const int64_t resized = number(now, "restarts", "resizes");
    const int64_t generation = number(now, "membership", "generation");
    const int64_t justified = 1 + restarts + resizes;
    if (counted > restarts || resized > resizes || generation > justified) {
      return Error{ErrorCode::kInternal,
                   fmt::format("job {}: wanted {} restarts, {} resizes and generation {}, found {}",
                               job_, restarts, resizes, justified, now.dump())};
    }
    if (counted != restarts || resized != resizes || generation != justified) return false;
    if (now.value("phase", "") != "Running" || number(now, "nodes", "ready") != nodes) return false;
    const auto there = pods();
    if (!there || std::ssize(*there) != nodes) return false;
    for (const json& pod : *there)
      if (!is_member(pod) || pod["status"].value("phase", "") != "Running") return false;
    return true;
  };
  return await(patience_, holds, [&] {
    return fmt::format(
        "wanted job {} to run on {} pods with {} restarts and {} resizes, found {}, pods:{}", job_,
        nodes, restarts, resizes, status().dump(), names_of_pods());
  });
}

Status make_namespace(const kube::Client& admin, const std::string& name) {
  const auto made = admin.create(kube::kNamespaces, "", {{"metadata", {{"name", name}}}});
  if (!made) return made.error().to_error("create namespace " + name);
  const std::string account = "/api/v1/namespaces/" + name + "/serviceaccounts/default";
  return await(
      std::chrono::seconds(60),
      [&]() -> Result<bool> { return admin.get_path(account).has_value(); },
      [&] { return "namespace " + name + " has no service account"; });
}

}  // namespace trainyard::testing_support

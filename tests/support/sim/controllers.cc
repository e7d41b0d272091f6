#include "tests/support/sim/controllers.h"

#include <algorithm>
#include <array>
#include <utility>

#include "common/text/rfc3339.h"

namespace trainyard::sim {
namespace {

constexpr char kScheduler[] = "system:kube-scheduler";
constexpr char kKubelet[] = "system:node";
constexpr char kCollector[] = "system:serviceaccount:kube-system:generic-garbage-collector";
constexpr char kLifecycle[] = "system:serviceaccount:kube-system:node-controller";
constexpr int kTerminated = 143;

std::string text_at(const Json& object, const char* part, const char* key) {
  const Json& value = member_of(member_of(object, part), key);
  return value.is_string() ? value.get<std::string>() : std::string();
}

std::string phase_of(const Json& pod) { return text_at(pod, "status", "phase"); }
std::string node_of(const Json& pod) { return text_at(pod, "spec", "nodeName"); }
bool is_over(const Json& pod) { return phase_of(pod) == "Succeeded" || phase_of(pod) == "Failed"; }

void set_condition(Json& status, const std::string& type, const std::string& value,
                   const std::string& reason, const std::string& message) {
  Json condition = {{"type", type}, {"status", value}, {"reason", reason}, {"message", message}};
  Json& conditions = status["conditions"];
  if (!conditions.is_array()) conditions = Json::array();
  for (Json& before : conditions) {
    if (before["type"] == type) {
      before = std::move(condition);
      return;
    }
  }
  conditions.push_back(std::move(condition));
}

bool has_condition(const Json& pod, const std::string& type, const std::string& value) {
  const Json& conditions = member_of(member_of(pod, "status"), "conditions");
  return std::any_of(conditions.begin(), conditions.end(), [&](const Json& condition) {
    return condition["type"] == type && condition["status"] == value;
  });
}

int64_t room_of(const Json& node) {
  const std::string pods = text_at(member_of(node, "status"), "allocatable", "pods");
  return pods.empty() ? 0 : std::stoll(pods);
}

std::vector<std::string> finalizers_of(const Json& object) {
  std::vector<std::string> found;
  for (const Json& finalizer : member_of(member_of(object, "metadata"), "finalizers"))
    found.push_back(finalizer.get<std::string>());
  return found;
}

bool holds(const std::vector<std::string>& list, const std::string& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

std::string owner_of(const Json& object) {
  const Json& owners = member_of(member_of(object, "metadata"), "ownerReferences");
  if (!owners.is_array() || owners.empty()) return {};
  return owners[0].value("uid", "");
}

}  // namespace

Json ended_status(const Json& status, int code, const std::string& at) {
  Json ended = status;
  ended["phase"] = code == 0 ? "Succeeded" : "Failed";
  set_condition(ended, "Ready", "False", "PodCompleted", "");
  ended["containerStatuses"] = Json::array({{{"name", "trainer"},
                                             {"state",
                                              {{"terminated",
                                                {{"exitCode", code},
                                                 {"reason", code == 0 ? "Completed" : "Error"},
                                                 {"finishedAt", at}}}}}}});
  return ended;
}

Answer Controllers::write(const std::string& user, const std::string& verb, const ObjectKey& key,
                          Json body, const std::string& subresource) {
  Call call;
  call.user = user;
  call.verb = verb;
  call.object = key;
  call.subresource = subresource;
  call.body = std::move(body);
  return api_.call(std::move(call));
}

void Controllers::add_node(const std::string& name, int64_t pods) {
  const ObjectKey key{"nodes", "", name};
  Json node = {{"metadata", {{"name", name}}},
               {"status",
                {{"conditions", Json::array({{{"type", "Ready"}, {"status", "True"}}})},
                 {"allocatable", {{"pods", std::to_string(pods)}, {"cpu", "64"}}}}}};
  write(kKubelet, "create", key, std::move(node));
}

void Controllers::set_node_ready(const std::string& name, bool ready) {
  const ObjectKey key{"nodes", "", name};
  const Object node = api_.store().find(key);
  if (!node) return;
  Json after = *node;
  set_condition(after["status"], "Ready", ready ? "True" : "Unknown", "", "");
  write(kLifecycle, "update", key, std::move(after), "status");
  if (ready) {
    lost_.erase(name);
  } else {
    lost_.try_emplace(name, Lost{api_.clock().mono()});
  }
}

void Controllers::set_room(const std::string& name, int64_t pods) {
  const ObjectKey key{"nodes", "", name};
  Json after = *api_.store().find(key);
  after["status"]["allocatable"]["pods"] = std::to_string(pods);
  write(kKubelet, "update", key, std::move(after), "status");
}

void Controllers::remove_node(const std::string& name) {
  lost_.erase(name);
  const ObjectKey key{"nodes", "", name};
  if (api_.store().find(key)) write(kLifecycle, "delete", key, {});
}

void Controllers::exit_pod(const std::string& uid, int code) { exits_[uid] = code; }

bool Controllers::is_ready(const std::string& node) const {
  return api_.store().find({"nodes", "", node}) && !lost_.contains(node);
}

std::optional<MonoTime> Controllers::next_due() const {
  std::optional<MonoTime> first;
  for (const auto& [node, lost] : lost_) {
    if (lost.evicted) continue;
    first = std::min(first.value_or(MonoTime::max()), lost.since + options_.toleration);
  }
  return first;
}

bool Controllers::round() {
  const Pods pods = api_.store().list("pods", "");
  bool more = schedule(pods);
  more = run_pods(pods) || more;
  more = lose_pods(pods) || more;
  for (auto& [node, lost] : lost_)
    lost.evicted = lost.evicted || api_.clock().mono() - lost.since >= options_.toleration;
  more = collect() || more;
  return more;
}

// ---- The scheduler -----------------------------------------------------------------------------

bool Controllers::schedule(const Pods& pods) {
  std::map<std::string, int64_t> used;
  for (const auto& [key, pod] : pods) {
    if (!is_over(*pod)) ++used[node_of(*pod)];
  }
  bool more = false;
  const auto nodes = api_.store().list("nodes", "");
  for (const auto& [key, pod] : pods) {
    if (!node_of(*pod).empty() || is_terminating(*pod) || is_over(*pod)) continue;
    if (is_late()) {
      more = true;
      continue;
    }
    const auto fits = std::find_if(nodes.begin(), nodes.end(), [&](const auto& node) {
      return is_ready(node.first.name) && used[node.first.name] < room_of(*node.second);
    });
    if (fits == nodes.end() && has_condition(*pod, "PodScheduled", "False")) continue;
    Json after = *pod;
    if (fits == nodes.end()) {
      set_condition(after["status"], "PodScheduled", "False", "Unschedulable", "no node has room");
      write(kScheduler, "update", key, std::move(after), "status");
      continue;
    }
    ++used[fits->first.name];
    // The binding's subresource sets both at once.
    after["spec"]["nodeName"] = fits->first.name;
    set_condition(after["status"], "PodScheduled", "True", "", "");
    api_.store().put(key, std::move(after));
    more = true;
  }
  return more;
}

// ---- Kubelets and node lifecycle ---------------------------------------------------------------

bool Controllers::run_pods(const Pods& pods) {
  bool more = false;
  for (const auto& [key, listed] : pods) {
    const Object pod = api_.store().find(key);
    if (!pod || meta_text(*pod, "uid") != meta_text(*listed, "uid")) continue;
    if (node_of(*listed).empty() || !is_ready(node_of(*listed))) continue;
    if (is_late()) {
      more = true;
      continue;
    }
    more = run_pod(key, *pod) || more;
  }
  return more;
}

bool Controllers::run_pod(const ObjectKey& key, const Json& pod) {
  const std::string uid = meta_text(pod, "uid");
  const auto exit = exits_.find(uid);
  const std::string phase = phase_of(pod);
  const bool exits = exit != exits_.end() && phase == "Running";
  const auto tell = [&](Json status) {
    Json after = {{"metadata", pod["metadata"]}};
    after["status"] = std::move(status);
    write(kKubelet, "update", key, std::move(after), "status");
    return true;
  };
  if (!is_over(pod) && (is_terminating(pod) || exits)) {
    const std::string now =
        text::format_time(std::chrono::floor<std::chrono::seconds>(api_.clock().now()));
    Json status =
        ended_status(pod["status"], exit != exits_.end() ? exit->second : kTerminated, now);
    if (exit != exits_.end()) exits_.erase(exit);
    return tell(std::move(status));
  }
  if (is_terminating(pod)) {
    write(kKubelet, "delete", key, {{"gracePeriodSeconds", 0}, {"preconditions", {{"uid", uid}}}});
    return true;
  }
  // A node that has come back: what still runs on it is ready again.
  const bool back = phase == "Running" && !has_condition(pod, "Ready", "True");
  if (phase != "Pending" && !back) return false;
  Json status = pod["status"];
  status["phase"] = "Running";
  if (!status.contains("podIP")) {
    const int64_t number = ++addresses_;
    status["podIP"] = "10.0." + std::to_string(number / 250) + "." + std::to_string(number % 250);
  }
  set_condition(status, "Ready", "True", "", "");
  return tell(std::move(status));
}

/// Pods of nodes that are not ready: first not ready themselves, then deleted, which no kubelet
/// ends; pods of nodes that are gone are taken away.
bool Controllers::lose_pods(const Pods& pods) {
  bool more = false;
  for (const auto& [key, listed] : pods) {
    const std::string node = node_of(*listed);
    const Object pod = api_.store().find(key);
    if (node.empty() || is_ready(node) || !pod) continue;
    if (is_late()) {
      more = true;
      continue;
    }
    const std::string uid = meta_text(*pod, "uid");
    const auto lost = lost_.find(node);
    if (lost == lost_.end()) {
      write(kLifecycle, "delete", key,
            {{"gracePeriodSeconds", 0}, {"preconditions", {{"uid", uid}}}});
      more = true;
      continue;
    }
    if (is_over(*pod)) continue;
    if (!has_condition(*pod, "Ready", "False")) {
      Json after = *pod;
      set_condition(after["status"], "Ready", "False", "NodeNotReady", "");
      write(kLifecycle, "update", key, std::move(after), "status");
      more = true;
    } else if (!is_terminating(*pod) &&
               api_.clock().mono() - lost->second.since >= options_.toleration) {
      Json after = *pod;
      set_condition(after["status"], "DisruptionTarget", "True", "DeletionByTaintManager",
                    "the node is lost");
      write(kLifecycle, "update", key, std::move(after), "status");
      write(kLifecycle, "delete", key, {{"preconditions", {{"uid", uid}}}});
      more = true;
    }
  }
  return more;
}

// ---- The garbage collector ---------------------------------------------------------------------

std::vector<std::pair<ObjectKey, Object>> Controllers::owned_by(const std::string& owner) const {
  std::vector<std::pair<ObjectKey, Object>> owned;
  constexpr std::array kKinds = {"pods", "services", "configmaps", "poddisruptionbudgets",
                                 "endpointslices"};
  for (const char* plural : kKinds) {
    for (const auto& entry : api_.store().list(plural, "")) {
      const std::string uid = owner_of(*entry.second);
      if (!uid.empty() && (owner.empty() || uid == owner)) owned.push_back(entry);
    }
  }
  return owned;
}

bool Controllers::collect() {
  std::set<std::string> owners;
  for (const auto& [key, job] : api_.store().list("trainingjobs", ""))
    owners.insert(meta_text(*job, "uid"));
  const bool more = collect_owned(owners);
  return finalize_jobs() || more;
}

bool Controllers::collect_owned(const std::set<std::string>& owners) {
  bool more = false;
  for (const auto& [key, object] : owned_by("")) {
    if (owners.contains(owner_of(*object)) || is_terminating(*object)) continue;
    more = true;
    if (is_late()) continue;
    write(kCollector, "delete", key, {{"preconditions", {{"uid", meta_text(*object, "uid")}}}});
  }
  return more;
}

bool Controllers::finalize_jobs() {
  bool more = false;
  for (const auto& [key, job] : api_.store().list("trainingjobs", "")) {
    if (!is_terminating(*job)) continue;
    const std::vector<std::string> finalizers = finalizers_of(*job);
    const std::string uid = meta_text(*job, "uid");
    bool done = true;
    if (holds(finalizers, "orphan")) {
      done = !release_orphans(uid);
    } else if (holds(finalizers, "foregroundDeletion")) {
      const auto owned = owned_by(uid);
      done = owned.empty();
      for (const auto& [owned_key, object] : owned) {
        if (is_terminating(*object)) continue;
        write(kCollector, "delete", owned_key,
              {{"preconditions", {{"uid", meta_text(*object, "uid")}}}});
        more = true;
      }
    }
    if (!done) continue;
    write(kCollector, "patch", key, {{"metadata", {{"uid", uid}, {"finalizers", nullptr}}}});
    more = true;
  }
  return more;
}

/// Whether there was any.
bool Controllers::release_orphans(const std::string& owner) {
  const auto owned = owned_by(owner);
  for (const auto& [key, object] : owned) {
    write(kCollector, "patch", key,
          {{"metadata", {{"uid", meta_text(*object, "uid")}, {"ownerReferences", nullptr}}}});
  }
  return !owned.empty();
}

}  // namespace trainyard::sim

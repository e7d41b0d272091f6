#include "tests/support/sim/play.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <ostream>
#include <set>

#include "tests/support/invariants.h"
#include "tests/support/ledger_check.h"

namespace trainyard::sim {
namespace {

/// After the last stage and its faults: watches that fell silent time out, back-offs and pauses
/// end.
constexpr std::chrono::minutes kHealing{3};
/// Undisturbed, and after a fault: longer than any timer that a fault could leave behind.
constexpr std::chrono::hours kCalmRest{1};
constexpr std::chrono::minutes kRest{3};

Json items_of(SimCluster& world, const std::string& plural) {
  Json items = Json::array();
  for (const auto& [key, object] : world.api().store().list(plural, ""))
    items.push_back(*object);
  return {{"items", std::move(items)}};
}

/// "train-0 10.0.0.1 <uid>" of the pods that a job's names are to lead to.
std::set<std::string> named_pods(SimCluster& world, const std::string& job_uid) {
  std::set<std::string> named;
  for (const auto& [key, pod] : world.api().store().list("pods", "")) {
    const Json& status = member_of(*pod, "status");
    const std::string phase = status.is_object() ? status.value("phase", "") : "";
    const bool lives = phase == "Running" && !is_terminating(*pod) && status.contains("podIP");
    if (!lives || label(*pod, "trainyard.dev/job-uid") != job_uid ||
        label(*pod, "trainyard.dev/member") != "true")
      continue;
    const bool was_spare = !label(*pod, "trainyard.dev/spare").empty();
    const std::string host = was_spare ? label(*pod, "trainyard.dev/job-name") + "-" +
                                             label(*pod, "trainyard.dev/node-index")
                                       : (*pod)["spec"].value("hostname", "");
    named.insert(host + " " + status.value("podIP", "") + " " + meta_text(*pod, "uid"));
  }
  return named;
}

/// N1: at rest the names of a job's pods lead to its pods that count, and to nobody else.
void judge_names(SimCluster& world, std::vector<std::string>& found) {
  for (const auto& [key, job] : world.api().store().list("trainingjobs", "")) {
    const std::string uid = meta_text(*job, "uid");
    if (is_terminating(*job)) continue;
    std::multiset<std::string> names;
    for (const auto& [slice_key, slice] : world.api().store().list("endpointslices", "")) {
      if (label(*slice, "trainyard.dev/job-uid") != uid) continue;
      for (const Json& one : (*slice)["endpoints"]) {
        names.insert(one.value("hostname", "") + " " + one["addresses"][0].get<std::string>() +
                     " " + one["targetRef"].value("uid", ""));
      }
    }
    const std::set<std::string> pods = named_pods(world, uid);
    if (std::equal(names.begin(), names.end(), pods.begin(), pods.end())) continue;
    std::string text = "N1: the names of " + key.name + " lead to";
    for (const std::string& name : names)
      text += " [" + name + "]";
    text += ", its pods are";
    for (const std::string& pod : pods)
      text += " [" + pod + "]";
    found.push_back(std::move(text));
  }
}

/// Entries of jobs that were not deleted while they ran. What was deleted so while no process of
/// the operator looked has none.
std::vector<Json> ledgers_of_ended(SimCluster& world) {
  std::vector<Json> ended;
  for (const auto& [key, object] : world.api().store().list("configmaps", "")) {
    if (key.name != "trainyard-ledgers") continue;
    for (const auto& [job, text] : (*object)["data"].items()) {
      Json entry = Json::parse(text.get<std::string>());
      if (entry["end"] != "Deleted") ended.push_back(std::move(entry));
    }
  }
  return ended;
}

/// UIDs of the jobs that the operator has deleted.
std::set<std::string> deleted_by_operator(SimCluster& world) {
  std::set<std::string> uids;
  for (const auto& event : world.api().audit()) {
    const bool is_it = event.verb == "delete" && event.resource == "trainingjobs" &&
                       event.code == 200 && event.user.starts_with(Replica::kUser);
    if (!is_it) continue;
    const Json& details = member_of(event.answer, "details");
    uids.insert(details.is_object() ? details.value("uid", "") : meta_text(event.answer, "uid"));
  }
  return uids;
}

/// UIDs of the jobs that were Complete or Failed at any time, but for those that a user deleted
/// soon, while three processes ended in a row: the one that wrote the end, one that led without
/// having seen it, and one that had only noted the deletion (docs/adr/0035).
std::set<std::string> jobs_with_ledgers(SimCluster& world) {
  constexpr std::chrono::minutes kBlind{2};  // a watch that has fallen silent
  constexpr int64_t kInARow = 3;
  const std::set<std::string> by_operator = deleted_by_operator(world);
  std::map<std::string, MonoTime> ended;
  std::set<std::string> excused;
  const Store& store = world.api().store();
  for (int64_t revision = 1; revision <= store.revision(); ++revision) {
    const Change& change = store.change(revision);
    if (change.key.plural != "trainingjobs") continue;
    const std::string uid = meta_text(*change.now, "uid");
    const Json& status = member_of(*change.now, "status");
    const std::string phase = status.is_object() ? status.value("phase", "") : "";
    const bool is_over = phase == "Complete" || phase == "Failed";
    if (is_over && status.contains("goodput")) ended.try_emplace(uid, change.at);
    if (change.type != kube::EventType::kDeleted || !ended.contains(uid)) continue;
    const int64_t ends = std::ranges::count_if(world.ends(), [&](MonoTime end) {
      return end >= ended.at(uid) && end <= change.at + kBlind;
    });
    const bool is_soon = change.at - ended.at(uid) <= kBlind;
    if (is_soon && ends >= kInARow && !by_operator.contains(uid)) excused.insert(uid);
  }
  std::set<std::string> wanted;
  for (const auto& [uid, at] : ended)
    if (!excused.contains(uid)) wanted.insert(uid);
  return wanted;
}

/// K1: the ledgers of these jobs are kept, and the sums of every one conserve.
void judge_ledgers(SimCluster& world, std::vector<std::string>& found) {
  std::set<std::string> kept;
  for (Json entry : ledgers_of_ended(world)) {
    kept.insert(entry["uid"].get<std::string>());
    entry["completionTime"] = entry["endTime"];
    for (const std::string& fault : testing_support::faults_of_ledger(entry))
      found.push_back("K1: " + fault + " in the ledger of " + entry["job"].get<std::string>());
  }
  for (const std::string& uid : jobs_with_ledgers(world)) {
    if (!kept.contains(uid)) found.push_back("K1: no ledger is kept of job " + uid);
  }
}

int64_t number(const Json& object, const char* part, const char* key) {
  const Json& value = member_of(member_of(object, part), key);
  return value.is_number_integer() ? value.get<int64_t>() : 0;
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const AtRest& rest) {
  out << rest.phase << ", generation " << rest.generation << ", restarts " << rest.restarts
      << ", resizes " << rest.resizes << ", attempts " << rest.attempts << ", companions "
      << rest.companions << ", pods " << rest.pods << ", made " << rest.made << ", ledgers "
      << rest.ledgers << ", members";
  for (const auto& [index, generation] : rest.members)
    out << " " << index << "@" << generation;
  return out;
}

std::string phase_of(SimCluster& world, const std::string& job) {
  const Json object = world.job(job);
  if (!object.is_object()) return "none";
  const Json& status = member_of(object, "status");
  return status.is_object() ? status.value("phase", "") : "untouched";
}

AtRest at_rest(SimCluster& world, const std::string& job) {
  AtRest rest;
  const Json object = world.job(job);
  const Json& status = member_of(object, "status");
  rest.phase = phase_of(world, job);
  rest.generation = number(status, "membership", "generation");
  rest.restarts = number(status, "restarts", "total");
  rest.resizes = number(status, "restarts", "resizes");
  rest.attempts = static_cast<int64_t>(member_of(status, "attempts").size());
  for (const char* plural : {"services", "poddisruptionbudgets", "endpointslices"})
    rest.companions += static_cast<int64_t>(world.api().store().list(plural, "").size());
  for (const Json& pod : world.pods_of(job)) {
    ++rest.pods;
    const std::string phase = member_of(pod, "status").value("phase", "");
    const bool over = phase == "Failed" || phase == "Succeeded" || is_terminating(pod);
    if (over || label(pod, "trainyard.dev/member") != "true") continue;
    rest.members[std::stoi(label(pod, "trainyard.dev/node-index"))] =
        std::stoll(label(pod, "trainyard.dev/created-generation"));
  }
  for (const auto& event : world.api().audit()) {
    if (event.verb == "create" && event.resource == "pods" && event.code == 201 && !event.dry_run) {
      ++rest.made;
    }
  }
  rest.ledgers = static_cast<int64_t>(ledgers_of_ended(world).size());
  return rest;
}

std::vector<std::string> judge(SimCluster& world, const Lenience& lenience, Duration rest) {
  std::vector<std::string> found;
  const int64_t writes = world.writes();
  world.run_for(rest);
  if (world.writes() != writes) {
    const auto& last = world.api().audit().back();
    found.push_back("L3: " + std::to_string(world.writes() - writes) +
                    " writes at rest, the last: " + last.verb + " " + last.resource + " " +
                    last.name);
  }
  if (world.spins()) found.emplace_back("L5: steps without end and without time passing");
  testing_support::Case judged;
  judged.events = &world.api().audit();
  judged.operator_user = Replica::kUser;
  judged.late_writers = lenience.late_writers;
  judged.late_views = lenience.late_views;
  judged.remaining = items_of(world, "pods");
  judged.jobs = items_of(world, "trainingjobs");
  for (std::string& violation : testing_support::invariant_violations(judged))
    found.push_back(std::move(violation));
  judge_names(world, found);
  judge_ledgers(world, found);
  return found;
}

Played play(const Workload& workload, const Disturbance& disturbance) {
  SimCluster::Options options;
  options.standby = disturbance.standby;
  options.nodes = workload.nodes;
  options.pods_per_node = workload.pods_per_node;
  const auto logger = std::getenv("TRAINYARD_SIM_LOG") != nullptr
                          ? Logger::to_stderr(LogLevel::kInfo, LogFormat::kText)
                          : nullptr;
  options.logger = logger.get();
  SimCluster world(options);
  world.set_fault_plan(disturbance.faults);
  world.set_event_plan(disturbance.events);
  for (const Stage& stage : workload.stages) {
    stage.act(world);
    world.run_for(stage.then);
  }
  Played played;
  played.writes = world.writes();
  played.events = world.events();
  world.heal();
  world.run_for(kHealing);
  played.faults = world.faults();
  played.violations = judge(world, {.late_writers = disturbance.late_writers},
                            disturbance.faults || disturbance.events ? Duration(kRest) : kCalmRest);
  played.rest = at_rest(world, "job");
  return played;
}

}  // namespace trainyard::sim

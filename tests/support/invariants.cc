#include "tests/support/invariants.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace trainyard::testing_support {
namespace {

using Json = nlohmann::json;

constexpr char kUid[] = "trainyard.dev/job-uid";
constexpr char kIndex[] = "trainyard.dev/node-index";
constexpr char kGeneration[] = "trainyard.dev/created-generation";
constexpr char kMember[] = "trainyard.dev/member";

const Json& at(const Json& object, const char* key) {
  static const Json kNothing;
  if (!object.is_object()) return kNothing;
  const auto found = object.find(key);
  return found == object.end() ? kNothing : *found;
}

std::string text(const Json& object, const char* key) {
  const Json& value = at(object, key);
  return value.is_string() ? value.get<std::string>() : std::string();
}

int64_t number(const Json& object, const char* key) {
  const Json& value = at(object, key);
  return value.is_number_integer() ? value.get<int64_t>() : 0;
}

bool is_true(const Json& status, const char* type) {
  const Json& conditions = at(status, "conditions");
  return std::any_of(conditions.begin(), conditions.end(), [&](const Json& condition) {
    return text(condition, "type") == type && text(condition, "status") == "True";
  });
}

bool is_stopping(const Json& status) {
  const Json& conditions = at(status, "conditions");
  return std::any_of(conditions.begin(), conditions.end(), [](const Json& condition) {
    return text(condition, "type") == "Suspended" && text(condition, "reason") == "Suspended";
  });
}

/// The status says that no pod is to run.
bool is_over(const Json& status) {
  return is_stopping(status) || is_true(status, "FailureTarget") ||
         is_true(status, "SuccessCriteriaMet") || is_true(status, "Complete") ||
         is_true(status, "Failed");
}

struct Job {
  Json spec;
  Json status;
  bool leaving = false;  ///< has a deletionTimestamp, or is gone
  int64_t losses = 0;    ///< pods that failed, or that others took away
};

struct Pod {
  std::string name;
  std::string job;
  int64_t generation = 0;
  bool member = true;
  bool lost = false;  ///< counted among its job's losses
  bool alive = true;  ///< neither over nor gone
};

class Judge {
 public:
  explicit Judge(const Case& judged) : case_(judged) {}

  std::vector<std::string> run() {
    for (const AuditEvent& event : *case_.events) {
      if (event.code < 200 || event.code >= 300 || event.dry_run) continue;
      take(event);
    }
    check_rest();
    return std::move(violations_);
  }

 private:
  bool is_operator(const AuditEvent& event) const {
    return event.user.starts_with(case_.operator_user);
  }

  void take(const AuditEvent& event) {
    if (event.resource == "trainingjobs" || event.resource == "trainingjobs/status") {
      take_job(event);
    } else if (event.resource == "pods" || event.resource == "pods/status") {
      take_pod(event);
    }
  }

  void take_job(const AuditEvent& event) {
    const Json& metadata = at(event.answer, "metadata");
    if (event.verb == "delete" && text(event.answer, "kind") == "Status") {
      jobs_[text(at(event.answer, "details"), "uid")].leaving = true;
      return;
    }
    const std::string uid = text(metadata, "uid");
    if (uid.empty()) return;
    Job& job = jobs_[uid];
    job.leaving = job.leaving || !text(metadata, "deletionTimestamp").empty();
    job.spec = at(event.answer, "spec");
    const Json& status = at(event.answer, "status");
    if (event.resource == "trainingjobs/status") check_forward(event, job, status);
    job.status = status;
  }

  void check_forward(const AuditEvent& event, const Job& job, const Json& now) {
    const Json& before = job.status;
    const auto delta = [&](const char* part, const char* key) {
      return number(at(now, part), key) - number(at(before, part), key);
    };
    if (number(now, "observedGeneration") < number(before, "observedGeneration")) {
      complain(event, "S5: observedGeneration went back");
    }
    const int64_t generations = delta("membership", "generation");
    const int64_t restarts = delta("restarts", "total");
    const int64_t resizes = delta("restarts", "resizes");
    if (generations < 0 || generations > 1 || restarts < 0 || resizes < 0) {
      complain(event, "S5: generation " + std::to_string(generations) + ", restarts " +
                          std::to_string(restarts) + ", resizes " + std::to_string(resizes) +
                          " in one write");
    }
    const bool starts = number(at(before, "membership"), "generation") == 0 || is_stopping(before);
    if (restarts + resizes + (starts ? 1 : 0) < generations || restarts + resizes > generations) {
      complain(event, "S5: a generation without its restart, resize or start");
    }
    if (number(at(now, "restarts"), "total") > job.losses) {
      complain(event, "S5: " + std::to_string(number(at(now, "restarts"), "total")) +
                          " restarts are counted of " + std::to_string(job.losses) +
                          " pods that were lost");
    }
    for (const char* type : {"Complete", "Failed", "Suspended"}) {
      const bool was = is_true(before, type);
      if (was && !is_true(now, type) && std::string_view(type) != "Suspended") {
        complain(event, std::string("S5: ") + type + " was taken back");
      }
      if (!was && is_true(now, type) && runs_any(text(at(event.answer, "metadata"), "uid"))) {
        complain(event, std::string("S5: ") + type + " though pods still run");
      }
    }
  }

  bool runs_any(const std::string& job) const {
    return std::any_of(pods_.begin(), pods_.end(),
                       [&](const auto& pod) { return pod.second.job == job && pod.second.alive; });
  }

  void take_pod(const AuditEvent& event) {
    const Json& metadata = at(event.answer, "metadata");
    const std::string uid = text(metadata, "uid");
    if (event.verb == "create") {
      made(event, uid);
      return;
    }
    const auto found = pods_.find(uid);
    if (found == pods_.end()) return;
    Pod& pod = found->second;
    Job& job = jobs_[pod.job];
    const bool ours = is_operator(event);
    const std::string phase = text(at(event.answer, "status"), "phase");
    const bool failed = phase == "Failed";
    const bool gone = event.verb == "delete" && number(metadata, "deletionGracePeriodSeconds") == 0;
    if (failed || phase == "Succeeded" || gone) pod.alive = false;
    if (!ours && (event.verb == "delete" || failed) && !std::exchange(pod.lost, true)) ++job.losses;
    if (ours && (event.verb == "delete" || event.verb == "patch")) {
      check_announced(event, job, pod, uid);
    }
    if (ours && event.verb == "delete") ended_by_us_.insert(pod.job + "/" + pod.name);
    pod.member = pod.member && text(at(metadata, "labels"), kMember) == "true";
  }

  void made(const AuditEvent& event, const std::string& uid) {
    const Json& labels = at(at(event.answer, "metadata"), "labels");
    const std::string owner = text(labels, kUid);
    if (owner.empty()) return;
    const Pod pod{text(at(event.answer, "metadata"), "name"), owner,
                  std::stoll("0" + text(labels, kGeneration))};
    pods_[uid] = pod;
    const Job& job = jobs_[owner];
    const int64_t generation = number(at(job.status, "membership"), "generation");
    if (pod.generation > generation) {
      complain(event, "S3: pod " + pod.name + " of generation " + std::to_string(pod.generation) +
                          " was made before it was written down");
    }
    if (case_.late_writers) return;
    if (pod.generation < generation || is_over(job.status) || job.leaving) {
      complain(event, "S3: pod " + pod.name + " was made, though its job is over or beyond it");
    }
    if (ended_by_us_.contains(owner + "/" + pod.name)) {
      complain(event, "S4: pod " + pod.name + " was made again after the operator had deleted it");
    }
  }

  /// Whether the status that is stored says that this pod is to go.
  void check_announced(const AuditEvent& event, const Job& job, const Pod& pod,
                       const std::string& uid) {
    if (!pod.member || is_over(job.status)) return;
    const int64_t generation = number(at(job.status, "membership"), "generation");
    const std::string strategy = text(at(job.spec, "failurePolicy"), "restartStrategy");
    const bool all = strategy.empty() || strategy == "RecreateAll";
    if (all && pod.generation < generation) return;
    for (const Json& attempt : at(job.status, "attempts")) {
      if (text(attempt, "endTime").empty()) continue;
      const std::string blamed = text(attempt, "podUID");
      if (blamed == uid) return;
      const bool everybody = blamed.empty() && text(attempt, "podName").empty();
      const bool its_index =
          blamed.empty() && pod.name.substr(0, pod.name.rfind('-')) == text(attempt, "podName");
      const bool of_its_time = pod.generation <= number(attempt, "generation");
      if ((everybody || its_index) && of_its_time) return;
    }
    if (pod.generation < generation && has_successor(pod, uid)) return;
    complain(event, "S3: pod " + pod.name + " was condemned, which the status does not say");
  }

  /// A newer member of the same job's index: of two the newer stays.
  bool has_successor(const Pod& pod, const std::string& uid) const {
    const auto index_of = [](const std::string& name) {
      const size_t hash = name.rfind('-');
      return name.substr(0, hash);
    };
    return std::any_of(pods_.begin(), pods_.end(), [&](const auto& other) {
      return other.first != uid && other.second.job == pod.job && other.second.member &&
             index_of(other.second.name) == index_of(pod.name) &&
             other.second.generation > pod.generation;
    });
  }

  void check_rest() {
    std::map<std::string, std::string> members;
    for (const Json& pod : at(case_.remaining, "items")) {
      const Json& metadata = at(pod, "metadata");
      const Json& labels = at(metadata, "labels");
      if (text(labels, kMember) != "true" || !text(metadata, "deletionTimestamp").empty()) continue;
      const std::string slot = text(labels, kUid) + "/" + text(labels, kIndex);
      const auto [there, fresh] = members.try_emplace(slot, text(metadata, "name"));
      if (!fresh) {
        violations_.push_back("S1: at rest pods " + there->second + " and " +
                              text(metadata, "name") + " are members of one index");
      }
    }
  }

  void complain(const AuditEvent& event, const std::string& what) {
    violations_.push_back(event.time + " " + event.user + " " + event.verb + " " + event.resource +
                          " " + event.name + ": " + what);
  }

  const Case& case_;
  std::map<std::string, Job> jobs_;  ///< by UID
  std::map<std::string, Pod> pods_;  ///< by UID
  std::set<std::string> ended_by_us_;
  std::vector<std::string> violations_;
};

}  // namespace

std::vector<std::string> invariant_violations(const Case& judged) {
  std::vector<std::string> found = Judge(judged).run();
  std::set<std::string> users;
  for (const AuditEvent& event : *judged.events) {
    if (event.user.starts_with(judged.operator_user)) users.insert(event.user);
  }
  for (const std::string& user : users) {
    for (std::string& write : unguarded_writes(*judged.events, user))
      found.push_back("S3: without a precondition: " + std::move(write));
  }
  for (std::string& pod : pod_violations(*judged.events, judged.remaining, judged.jobs)) {
    // By whoever stood still: after its deletion, or before a successor whose maker cannot see it.
    const bool late = pod.find("made twice") != std::string::npos ||
                      pod.find("was made while") != std::string::npos;
    if (judged.late_writers && late) continue;
    found.push_back("S1, S2: " + std::move(pod));
  }
  return found;
}

}  // namespace trainyard::testing_support

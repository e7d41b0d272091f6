#include "tests/support/invariants.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "tests/support/api_objects.h"
#include "tests/support/ledger_check.h"

namespace trainyard::testing_support {
namespace {

using Json = nlohmann::json;

bool is_true(const Json& status, const char* type) {
  return text(condition_of(status, type), "status") == "True";
}

bool is_stopping(const Json& status) {
  return text(condition_of(status, "Suspended"), "reason") == "Suspended";
}

/// The generation that was has ended because only some of its pods had a node.
bool has_released_nodes(const Json& before, const Json& now) {
  const int64_t generation = number(at(before, "membership"), "generation");
  for (const Json& attempt : at(now, "attempts")) {
    if (number(attempt, "generation") == generation && text(attempt, "reason") == "GangTimeout" &&
        attempt.contains("endTime"))
      return true;
  }
  return false;
}

/// The status says that no pod is to run.
bool is_over(const Json& status) {
  return is_stopping(status) || is_true(status, "FailureTarget") ||
         is_true(status, "SuccessCriteriaMet") || is_true(status, "Complete") ||
         is_true(status, "Failed");
}

/// What the container that ends the pod has exited with, whatever others of it do.
std::optional<int64_t> exit_of(const Json& pod) {
  const std::string trainer = text(at(at(pod, "metadata"), "annotations"), kAnnotationTrainer);
  for (const Json& container : at(at(pod, "status"), "containerStatuses")) {
    const Json& terminated = at(at(container, "state"), "terminated");
    if (text(container, "name") == trainer && terminated.is_object())
      return number(terminated, "exitCode");
  }
  return std::nullopt;
}

/// Restarts for which no pod has to be lost: the job stood still.
int64_t hangs_of(const Json& status) {
  for (const Json& counted : at(at(status, "restarts"), "classes")) {
    if (text(counted, "class") == "Hang") return number(counted, "total");
  }
  return 0;
}

int64_t generation_of(const Json& status) { return number(at(status, "membership"), "generation"); }

int64_t restarts_of(const Json& status) { return number(at(status, "restarts"), "total"); }

const Json* nothing() { return &at(Json(), ""); }

/// Whether a list such as "0-3,7" holds the index.
bool holds_index(const std::string& list, int64_t index) {
  const char* from = list.data();
  const char* const end = from + list.size();
  while (from < end) {
    int64_t first = -1;
    from = std::from_chars(from, end, first).ptr;
    int64_t last = first;
    if (from < end && *from == '-') from = std::from_chars(from + 1, end, last).ptr;
    if (first <= index && index <= last) return true;
    ++from;  // the comma
  }
  return false;
}

struct Job {
  std::string name_space;
  const Json* spec = nothing();  ///< in the log, as is the status
  const Json* status = nothing();
  bool leaving = false;  ///< has a deletionTimestamp, or is gone
  bool gone = false;
  int64_t losses = 0;                ///< pods that failed, or that others took away
  int64_t set_back_from = 0;         ///< generation that somebody has taken out of the status
  bool has_books_of_others = false;  ///< somebody else has written its status
};

struct Pod {
  std::string uid;
  std::string name_space;
  std::string name;
  std::string job;   ///< UID
  std::string slot;  ///< job and index
  std::string port;  ///< where its gang meets
  int64_t generation = 0;
  bool member = true;
  std::string spare;  ///< number of one that was made as a spare
  bool lost = false;  ///< counted among its job's losses
  bool alive = true;  ///< neither over nor gone
  /// The exit code that a restart blamed it with while it ran: its agent had told.
  std::optional<int64_t> owed_exit;
};

class Judge {
 public:
  explicit Judge(const Case& judged) : case_(judged) {}

  std::vector<std::string> run() {
    for (const AuditEvent& event : *case_.events) {
      if (event.dry_run) continue;
      if (event.code >= 200 && event.code < 300) {
        take(event);
      } else if (event.code >= 500 && event.verb == "create" && event.resource == "pods") {
        doubtful_.insert(event.name_space + "/" + event.name);
      } else if (event.code >= 500 && event.resource == "pods") {
        doubt_member(event);
      }
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
    } else if (event.resource == "pods/eviction") {
      // The pod may stay for its grace, and its end be told long after the restart.
      Pod* const pod = pod_of(event);
      if (pod != nullptr && !has_completed(*pod)) lose(*pod);
    }
  }

  void take_job(const AuditEvent& event) {
    if (event.verb == "deletecollection") {
      for (auto& [uid, job] : jobs_)
        job.leaving = job.leaving || job.name_space == event.name_space;
      return;
    }
    // Of one whose asker has gone before the answer, the log may have the request alone.
    const Json& object = event.answer.is_object() ? event.answer : event.request;
    if (event.verb == "delete" && text(object, "kind") == "Status") {
      Job& job = jobs_[text(at(object, "details"), "uid")];
      job.leaving = job.gone = true;
      return;
    }
    const Json& metadata = at(object, "metadata");
    const std::string uid = text(metadata, "uid");
    if (uid.empty()) return;
    Job& job = jobs_[uid];
    job.name_space = event.name_space;
    job.leaving = job.leaving || !text(metadata, "deletionTimestamp").empty();
    job.gone = job.gone || (job.leaving && at(metadata, "finalizers").empty());
    if (const Json& spec = at(object, "spec"); spec.is_object()) job.spec = &spec;
    const Json& status = at(object, "status");
    if (event.resource == "trainingjobs/status") {
      if (is_operator(event)) {
        check_forward(event, uid, job, status);
        check_ledger(event, job, status);
      } else {  // a history that somebody has made up
        job.losses += std::max<int64_t>(0, restarts_of(status) - restarts_of(*job.status));
        job.set_back_from = std::max(job.set_back_from, generation_of(*job.status));
        job.has_books_of_others = true;
      }
      if (generation_of(status) >= job.set_back_from) job.set_back_from = 0;
    }
    job.status = &status;
  }

  void check_forward(const AuditEvent& event, const std::string& uid, const Job& job,
                     const Json& now) {
    const Json& before = *job.status;
    const auto delta = [&](const char* part, const char* key) {
      return number(at(now, part), key) - number(at(before, part), key);
    };
    if (number(now, "observedGeneration") < number(before, "observedGeneration")) {
      complain(event, "S5: observedGeneration went back");
    }
    // Where somebody has set it back, it is counted on from what it was.
    int64_t generations = delta("membership", "generation");
    if (generations != 0 && job.set_back_from > 0) {
      generations -= job.set_back_from - generation_of(before);
    }
    const int64_t restarts = delta("restarts", "total");
    const int64_t resizes = delta("restarts", "resizes");
    if (generations < 0 || generations > 1 || restarts < 0 || resizes < 0) {
      complain(event, "S5: generation " + std::to_string(generations) + ", restarts " +
                          std::to_string(restarts) + ", resizes " + std::to_string(resizes) +
                          " in one write");
    }
    const bool starts = number(at(before, "membership"), "generation") == 0 ||
                        is_stopping(before) || job.set_back_from > 0;
    const int64_t releases = has_released_nodes(before, now) ? 1 : 0;
    const int64_t causes = restarts + resizes + releases;
    if (causes + (starts ? 1 : 0) < generations || causes > generations) {
      complain(event, "S5: a generation without its restart, resize, release of nodes or start");
    }
    take_agents_at_their_word(uid, now, number(at(before, "membership"), "generation"));
    if (const int64_t counted = restarts_of(now) - hangs_of(now); counted > job.losses) {
      complain(event, "S5: " + std::to_string(counted) + " restarts are counted of " +
                          std::to_string(job.losses) + " pods that were lost");
    }
    for (const char* type : {"Complete", "Failed", "Suspended"}) {
      const bool was = is_true(before, type);
      if (was && !is_true(now, type) && std::string_view(type) != "Suspended") {
        complain(event, std::string("S5: ") + type + " was taken back");
      }
      if (!was && is_true(now, type) && runs_any(uid)) {
        complain(event, std::string("S5: ") + type + " though pods still run");
      }
    }
  }

  void check_ledger(const AuditEvent& event, const Job& job, const Json& now) {
    if (job.has_books_of_others || !now.is_object()) return;
    for (const std::string& fault : faults_of_ledger(now))
      complain(event, "S7: " + fault);
    const auto counted = [](const Json& status) {
      return unix_milliseconds_of(text(at(at(status, "goodput"), "counted"), "time"));
    };
    const auto before = counted(*job.status);
    const auto after = counted(now);
    if (before && (!after || *after < *before)) complain(event, "S7: the ledger went back");
  }

  /// An attempt that ended for a rank names the pod, which may run a little longer: how it ends is
  /// held against it. One that goes without a word (its node has gone) says nothing. Where ranks
  /// start again in their pods, none of them ends: one loss of the generation.
  void take_agents_at_their_word(const std::string& job, const Json& status, int64_t generation) {
    for (const Json& attempt : at(status, "attempts")) {
      const bool of_a_rank = attempt.contains("rank") && attempt.contains("exitCode");
      if (!of_a_rank || number(attempt, "generation") != generation) continue;
      if (attempt.value("inPlace", false)) {
        if (restarted_in_place_.insert({job, generation}).second) ++jobs_[job].losses;
        continue;
      }
      const auto found = pods_.find(text(attempt, "podUID"));
      if (found == pods_.end() || found->second.lost || !found->second.alive) continue;
      found->second.owed_exit = number(attempt, "exitCode");
      lose(found->second);
    }
  }

  void check_owed(const AuditEvent& event, Pod& pod, int64_t exit) {
    if (!pod.owed_exit || std::exchange(pod.owed_exit, std::nullopt) == exit) return;
    complain(event, "S5: pod " + pod.name + " ended with " + std::to_string(exit) +
                        ", which is not what its job was restarted for");
  }

  bool runs_any(const std::string& job) const {
    return std::any_of(pods_.begin(), pods_.end(),
                       [&](const auto& pod) { return pod.second.job == job && pod.second.alive; });
  }

  void take_pod(const AuditEvent& event) {
    if (event.verb == "create") {
      if (event.resource == "pods") made(event);
      return;
    }
    if (event.verb == "deletecollection") {
      for (auto& [uid, pod] : pods_) {
        if (pod.name_space == event.name_space) lose(pod);
      }
      return;
    }
    Pod* found = pod_of(event);
    if (found == nullptr) found = adopt(event);
    if (found == nullptr) return;
    Pod& pod = *found;
    const bool ours = is_operator(event);
    const std::string phase = text(at(event.answer, "status"), "phase");
    const std::optional<int64_t> exit = exit_of(event.answer);
    const bool failed = phase == "Failed" || exit.value_or(0) != 0;
    const bool gone = event.verb == "delete" && event.answer.is_object() &&
                      number(at(event.answer, "metadata"), "deletionGracePeriodSeconds") == 0;
    if (exit) check_owed(event, pod, *exit);
    if (failed || exit || phase == "Succeeded" || gone) pod.alive = false;
    if (!ours && (event.verb == "delete" || failed) && !has_completed(pod)) lose(pod);
    if (ours && (event.verb == "delete" || event.verb == "patch")) check_announced(event, pod);
    if (ours && event.verb == "delete") ended_by_us_.insert(pod.job + "/" + pod.name);
    const bool promoted = event.verb == "patch" && !pod.member && !pod.spare.empty() && ours &&
                          label(event.answer, kLabelMember) == "true";
    if (promoted) take_index(event, pod);
    pod.member = pod.member && keeps_member(event);
    if (event.verb == "delete" || !pod.member) leave_slot(pod);
  }

  /// The pod that a request is about; nullptr where it is none of a job's.
  Pod* pod_of(const AuditEvent& event) {
    const std::string uid = text(at(event.answer, "metadata"), "uid");
    if (!uid.empty()) {
      const auto found = pods_.find(uid);
      return found == pods_.end() ? nullptr : &found->second;
    }
    const auto named = newest_.find(event.name_space + "/" + event.name);
    return named == newest_.end() ? nullptr : &pods_.at(named->second);
  }

  /// A pod that was made for somebody who has died meanwhile: all that the log says of that is that
  /// the request was cut off. When exactly is not known, so nothing that hangs on it is judged.
  Pod* adopt(const AuditEvent& event) {
    const Json& metadata = at(event.answer, "metadata");
    const std::string uid = text(metadata, "uid");
    if (uid.empty() || label(event.answer, kLabelJobUid).empty() ||
        doubtful_.erase(event.name_space + "/" + event.name) == 0)
      return nullptr;
    Pod pod = read_pod(event);
    check_owner(event, pod);
    if (label(event.answer, kLabelMember) == "true") take_slot(event, pod);
    newest_[event.name_space + "/" + pod.name] = uid;
    return &(pods_[uid] = std::move(pod));
  }

  static Pod read_pod(const AuditEvent& event) {
    const Json& metadata = at(event.answer, "metadata");
    const std::string owner = label(event.answer, kLabelJobUid);
    Pod pod{text(metadata, "uid"), event.name_space, text(metadata, "name"), owner,
            owner + "/" + label(event.answer, kLabelNodeIndex)};
    pod.spare = label(event.answer, kLabelSpare);
    const std::string generation = label(event.answer, kLabelGeneration);
    std::from_chars(generation.data(), generation.data() + generation.size(), pod.generation);
    for (const Json& container : at(at(event.answer, "spec"), "containers")) {
      for (const Json& variable : at(container, "env")) {
        if (text(variable, "name") == "MASTER_PORT") pod.port = text(variable, "value");
      }
    }
    return pod;
  }

  /// Whether the status that is stored says that this spare stands ready.
  bool is_parked(const Pod& pod) {
    const Json& parked = at(at(*jobs_[pod.job].status, "spares"), "parked");
    return std::any_of(parked.begin(), parked.end(), [&](const Json& number) {
      return number.is_number_integer() && std::to_string(number.get<int64_t>()) == pod.spare;
    });
  }

  /// A spare becomes the member of an index, which the status has to say first.
  void take_index(const AuditEvent& event, Pod& pod) {
    const std::string index = label(event.answer, kLabelNodeIndex);
    const Json& promoted = at(at(*jobs_[pod.job].status, "membership"), "promoted");
    const bool announced = std::any_of(promoted.begin(), promoted.end(), [&](const Json& one) {
      return text(one, "podUID") == pod.uid && std::to_string(number(one, "index")) == index;
    });
    if (!announced && !case_.late_writers) {
      complain(event,
               "S3: spare " + pod.name + " got index " + index + ", which the status does not say");
    }
    pod.member = true;
    pod.slot = pod.job + "/" + index;
    take_slot(event, pod);
  }

  void check_owner(const AuditEvent& event, const Pod& pod) {
    const Json& owners = at(at(event.answer, "metadata"), "ownerReferences");
    if (owners.size() != 1 || text(owners[0], "uid") != pod.job)
      complain(event, "S2: pod " + pod.name + " has not its job as its owner");
  }

  /// Whether the pod is a member after this change, if it was one. Of one whose asker has gone
  /// before the answer, the log may have the request alone.
  static bool keeps_member(const AuditEvent& event) {
    if (event.answer.is_object()) return label(event.answer, kLabelMember) == "true";
    return asks_for_member(event);
  }

  void lose(Pod& pod) {
    if (!std::exchange(pod.lost, true)) ++jobs_[pod.job].losses;
  }

  void leave_slot(const Pod& pod) {
    const auto there = members_.find(pod.slot);
    if (there != members_.end() && there->second.name == pod.name) members_.erase(there);
  }

  /// A change whose asker has died meanwhile was made or not: whoever asked next has seen which.
  void doubt_member(const AuditEvent& event) {
    const Pod* pod = pod_of(event);
    if (pod == nullptr) return;
    if (event.verb == "delete" || (event.verb == "patch" && !asks_for_member(event))) {
      leave_slot(*pod);
    }
  }

  /// Whether what is asked for leaves the label of a member as it is.
  static bool asks_for_member(const AuditEvent& event) {
    const Json& labels = at(at(event.request, "metadata"), "labels");
    return !labels.is_object() || !labels.contains(kLabelMember);
  }

  void made(const AuditEvent& event) {
    if (label(event.answer, kLabelJobUid).empty()) return;
    Pod pod = read_pod(event);
    doubtful_.erase(event.name_space + "/" + pod.name);
    check_owner(event, pod);
    check_made(event, pod);
    check_configuration(event, pod);
    pod.member = label(event.answer, kLabelMember) == "true";
    if (pod.member) take_slot(event, pod);
    if (!pod.member && !is_parked(pod) && !case_.late_writers) {
      complain(event, "S3: spare " + pod.name + " was made, which the status does not say");
    }
    newest_[event.name_space + "/" + pod.name] = pod.uid;
    pods_[pod.uid] = std::move(pod);
  }

  /// Each pod stands for its generation: what is seen of its configuration is the port.
  void check_configuration(const AuditEvent& event, const Pod& pod) {
    if (case_.late_writers) return;
    const std::string generation = pod.job + "/" + std::to_string(pod.generation);
    const auto [first, fresh] = ports_.try_emplace(generation, pod.port);
    if (!fresh && first->second != pod.port) {
      complain(event, "S6: pod " + pod.name + " meets its gang at port " + pod.port +
                          ", others of its generation at " + first->second);
    }
  }

  void check_made(const AuditEvent& event, const Pod& pod) {
    const Job& job = jobs_[pod.job];
    const int64_t generation = number(at(*job.status, "membership"), "generation");
    if (pod.generation > generation) {
      complain(event, "S3: pod " + pod.name + " of generation " + std::to_string(pod.generation) +
                          " was made before it was written down");
    }
    if (case_.late_writers) return;
    if (job.gone && !case_.late_views) {
      complain(event, "S2: pod " + pod.name + " was made for a job that is gone");
    } else if (pod.generation < generation || is_over(*job.status) ||
               (job.leaving && !case_.late_views)) {
      complain(event, "S3: pod " + pod.name + " was made, though its job is over or beyond it");
    }
    if (ended_by_us_.contains(pod.job + "/" + pod.name)) {
      complain(event, "S4: pod " + pod.name + " was made again after the operator had deleted it");
    }
  }

  void take_slot(const AuditEvent& event, const Pod& pod) {
    const auto [there, is_free] = members_.try_emplace(pod.slot, Member{pod.name, pod.generation});
    if (is_free) return;
    // Of a generation that is over: whoever stood still for long carries out what it had begun.
    if (pod.generation < there->second.generation) return;
    if (!case_.late_writers) {
      complain(event, "S1: pod " + pod.name + " was made while " + there->second.name +
                          " was a member of the same index");
    }
    there->second = {pod.name, pod.generation};
  }

  /// Whether the status that is stored says that this pod is to go.
  void check_announced(const AuditEvent& event, const Pod& pod) {
    const Job& job = jobs_[pod.job];
    const bool goes_on = pod.alive && !pod.lost && !is_over(*job.status) && !case_.late_writers;
    if (event.verb == "delete" && !pod.spare.empty() && !pod.member && is_parked(pod) && goes_on) {
      complain(event, "S3: spare " + pod.name + " was deleted, which the status does not say");
    }
    if (!pod.member || is_over(*job.status)) return;
    const int64_t generation = number(at(*job.status, "membership"), "generation");
    const std::string strategy = text(at(*job.spec, "failurePolicy"), "restartStrategy");
    const bool all = strategy.empty() || strategy == "RecreateAll";
    if (all && pod.generation < generation) return;
    // A restart that has replaced all pods, whatever the strategy is by now.
    if (pod.generation < number(at(*job.status, "membership"), "podsSince")) return;
    if (has_completed(pod)) return;
    for (const Json& attempt : at(*job.status, "attempts")) {
      if (text(attempt, "endTime").empty()) continue;
      const std::string blamed = text(attempt, "podUID");
      if (blamed == pod.uid) return;
      const bool everybody = blamed.empty() && text(attempt, "podName").empty();
      const bool its_index = blamed.empty() && host_of(pod) == text(attempt, "podName");
      const bool of_its_time = pod.generation <= number(attempt, "generation");
      if ((everybody || its_index) && of_its_time) return;
    }
    if (pod.generation < generation && has_successor(pod)) return;
    complain(event, "S3: pod " + pod.name + " was condemned, which the status does not say");
  }

  /// Whether the status that is stored says that its index has ended well: nothing is lost with it
  /// any more, and another that runs for it is one too many.
  bool has_completed(const Pod& pod) {
    const std::string index = pod.slot.substr(pod.slot.rfind('/') + 1);
    int64_t number = -1;
    std::from_chars(index.data(), index.data() + index.size(), number);
    return holds_index(text(*jobs_[pod.job].status, "completedIndexes"), number);
  }

  /// "<job>-<index>".
  static std::string host_of(const Pod& pod) { return pod.name.substr(0, pod.name.rfind('-')); }

  /// A newer member of the same job's index: of two the newer stays.
  bool has_successor(const Pod& pod) const {
    return std::any_of(pods_.begin(), pods_.end(), [&](const auto& entry) {
      const Pod& other = entry.second;
      return other.uid != pod.uid && other.member && other.slot == pod.slot &&
             other.generation > pod.generation;
    });
  }

  void check_rest() {
    std::set<std::string> living;
    for (const Json& job : at(case_.jobs, "items"))
      living.insert(text(at(job, "metadata"), "uid"));
    std::map<std::string, std::string> members;
    for (const Json& pod : at(case_.remaining, "items")) {
      const std::string owner = label(pod, kLabelJobUid);
      const std::string name = text(at(pod, "metadata"), "name");
      // Without an owner: released by the deletion of its job that leaves orphans.
      const bool released = at(at(pod, "metadata"), "ownerReferences").empty();
      if (!owner.empty() && !released && !living.contains(owner)) {
        violations_.push_back("S2: at rest pod " + name + " is left and its job is gone");
      }
      const bool leaving = !text(at(pod, "metadata"), "deletionTimestamp").empty();
      if (label(pod, kLabelMember) != "true" || leaving) continue;
      const auto [there, fresh] =
          members.try_emplace(owner + "/" + label(pod, kLabelNodeIndex), name);
      if (!fresh) {
        violations_.push_back("S1: at rest pods " + there->second + " and " + name +
                              " are members of one index");
      }
    }
  }

  void complain(const AuditEvent& event, const std::string& what) {
    violations_.push_back(event.time + " " + event.user + " " + event.verb + " " + event.resource +
                          " " + event.name + ": " + what);
  }

  struct Member {
    std::string name;
    int64_t generation = 0;
  };

  const Case& case_;
  std::map<std::string, Job> jobs_;                               ///< by UID
  std::map<std::string, Pod> pods_;                               ///< by UID
  std::map<std::string, std::string> newest_;                     ///< UID by namespace and name
  std::map<std::string, Member> members_;                         ///< by job and index
  std::set<std::pair<std::string, int64_t>> restarted_in_place_;  ///< UID of the job, generation
  std::map<std::string, std::string> ports_;                      ///< by job and generation
  std::set<std::string> ended_by_us_;
  std::set<std::string> doubtful_;  ///< namespace and name of pods that may have been made
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
  return found;
}

}  // namespace trainyard::testing_support

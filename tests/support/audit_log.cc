#include "tests/support/audit_log.h"

#include <algorithm>
#include <fstream>
#include <map>

namespace trainyard::testing_support {
namespace {

using Json = nlohmann::json;

constexpr char kUid[] = "trainyard.dev/job-uid";
constexpr char kIndex[] = "trainyard.dev/node-index";
constexpr char kGeneration[] = "trainyard.dev/created-generation";
constexpr char kMember[] = "trainyard.dev/member";

std::string text(const Json& object, const char* key) {
  return object.is_object() ? object.value(key, std::string()) : std::string();
}

Json part(const Json& object, const char* key) {
  return object.is_object() ? object.value(key, Json()) : Json();
}

AuditEvent event_of(const Json& line) {
  const Json reference = part(line, "objectRef");
  const std::string subresource = text(reference, "subresource");
  const std::string uri = text(line, "requestURI");
  const Json status = part(line, "responseStatus");
  return {.time = text(line, "stageTimestamp"),
          .user = text(part(line, "user"), "username"),
          .verb = text(line, "verb"),
          .group = text(reference, "apiGroup"),
          .resource = text(reference, "resource") + (subresource.empty() ? "" : "/" + subresource),
          .name_space = text(reference, "namespace"),
          .name = text(reference, "name"),
          .code = status.is_object() ? status.value("code", 0) : 0,
          .allowed = text(part(line, "annotations"), "authorization.k8s.io/decision") == "allow",
          .dry_run = uri.find("dryRun=All") != std::string::npos,
          .request = part(line, "requestObject"),
          .answer = part(line, "responseObject")};
}

std::string right(const std::string& group, const std::string& resource, const std::string& verb) {
  return (group.empty() ? "" : group + "/") + resource + " " + verb;
}

/// The pods of jobs as they come and go.
class PodJudge {
 public:
  void created(const AuditEvent& event) {
    const Json labels = event.answer["metadata"].value("labels", Json::object());
    if (!labels.contains(kUid)) return;
    const std::string uid = text(event.answer["metadata"], "uid");
    const std::string job = text(labels, kUid);
    const std::string name = event.name_space + "/" + text(event.answer["metadata"], "name");
    const Json owners = event.answer["metadata"].value("ownerReferences", Json::array());
    if (owners.size() != 1 || text(owners[0], "uid") != job) {
      complain(event, name, "has not its job as its owner");
    }
    if (gone_jobs_.contains(job)) complain(event, name, "was made for a job that is gone");
    if (!names_.try_emplace(job + name, event.user).second)
      complain(event, name, "was made twice for one job");
    const std::string slot = job + " index " + text(labels, kIndex);
    const int64_t generation = std::stoll("0" + text(labels, kGeneration));
    slots_[name] = slot;
    if (const auto there = members_.find(slot); there != members_.end()) {
      // Of a generation that is over: whoever stood still for long carries out what it had begun.
      if (generation < there->second.generation) return;
      complain(event, name,
               "was made while " + there->second.name + " was a member of the same index");
    }
    members_[slot] = {name, generation};
  }

  /// A change or the beginning of a deletion: the pod is a member no more.
  void condemned(const AuditEvent& event) {
    const std::string name = event.name_space + "/" + event.name;
    const auto slot = slots_.find(name);
    if (slot == slots_.end()) return;
    if (const auto there = members_.find(slot->second);
        there != members_.end() && there->second.name == name) {
      members_.erase(there);
    }
    // What somebody else took away before its gang was whole is made again.
    const auto maker = names_.find(slot->second.substr(0, slot->second.find(' ')) + name);
    const bool taken = event.verb == "delete" && maker != names_.end();
    if (taken && maker->second != event.user) names_.erase(maker);
  }

  void job_gone(const std::string& uid) { gone_jobs_.insert(uid); }

  std::vector<std::string> take() { return std::move(complaints_); }
  void complain(const AuditEvent& event, const std::string& name, const std::string& what) {
    complaints_.push_back(event.time + ": pod " + name + " " + what);
  }

 private:
  struct Member {
    std::string name;
    int64_t generation = 0;
  };
  std::map<std::string, Member> members_;     ///< by job and index
  std::map<std::string, std::string> slots_;  ///< job and index by pod
  std::map<std::string, std::string> names_;  ///< who made it, by job and name
  std::set<std::string> gone_jobs_;
  std::vector<std::string> complaints_;
};

bool succeeded(const AuditEvent& event) { return event.code >= 200 && event.code < 300; }

}  // namespace

std::vector<AuditEvent> read_audit_log(const std::filesystem::path& path) {
  std::vector<AuditEvent> events;
  std::ifstream file(path);
  std::set<std::string> watching;
  for (std::string line; std::getline(file, line);) {
    if (file.eof()) break;  // without its line break: still being written
    const Json json = Json::parse(line, nullptr, false);
    if (!json.is_object() || !json.contains("objectRef")) continue;
    const std::string stage = text(json, "stage");
    if (stage == "ResponseStarted") {
      watching.insert(text(json, "auditID"));
    } else if (stage != "ResponseComplete" || watching.contains(text(json, "auditID"))) {
      continue;
    }
    events.push_back(event_of(json));
  }
  std::stable_sort(events.begin(), events.end(),
                   [](const AuditEvent& a, const AuditEvent& b) { return a.time < b.time; });
  return events;
}

std::set<std::string> rights_used(const std::vector<AuditEvent>& events, std::string_view user) {
  std::set<std::string> rights;
  for (const AuditEvent& event : events) {
    if (event.user == user) rights.insert(right(event.group, event.resource, event.verb));
  }
  return rights;
}

std::set<std::string> rights_granted(const Json& role) {
  std::set<std::string> rights;
  for (const Json& rule : role["rules"]) {
    for (const Json& group : rule["apiGroups"]) {
      for (const Json& resource : rule["resources"]) {
        for (const Json& verb : rule["verbs"])
          rights.insert(right(group, resource, verb));
      }
    }
  }
  return rights;
}

namespace {

/// Whether a request ended before the server had read what it meant, as when its asker dies while
/// sending. Answers about the object (403, 404, 409) come after that.
bool body_never_came(const AuditEvent& event) {
  return event.request.is_null() && (event.code == 0 || event.code == 400 || event.code >= 500);
}

}  // namespace

std::vector<std::string> unguarded_writes(const std::vector<AuditEvent>& events,
                                          std::string_view user) {
  std::vector<std::string> found;
  for (const AuditEvent& event : events) {
    if (event.user != user || event.resource == "events" || event.resource == "leases") continue;
    if (body_never_came(event)) continue;
    const Json metadata = part(event.request, "metadata");
    bool guarded = true;
    if (event.verb == "delete")
      guarded = !text(part(event.request, "preconditions"), "uid").empty();
    if (event.verb == "patch") guarded = !text(metadata, "uid").empty();
    if (event.verb == "update") guarded = !text(metadata, "resourceVersion").empty();
    if (!guarded) {
      found.push_back(event.time + ": " + event.verb + " of " + event.resource + " " +
                      event.name_space + "/" + event.name + ": " + event.request.dump() +
                      ", answered " + std::to_string(event.code));
    }
  }
  return found;
}

namespace {

/// Whether the pod is no member after this change. Of one whose asker has gone before the answer,
/// the log may have the request alone.
bool takes_member_off(const AuditEvent& event) {
  if (event.answer.is_object()) {
    return !part(part(event.answer, "metadata"), "labels").contains(kMember);
  }
  const Json labels = part(part(event.request, "metadata"), "labels");
  return labels.contains(kMember) && labels[kMember].is_null();
}

}  // namespace

std::vector<std::string> pod_violations(const std::vector<AuditEvent>& events,
                                        const Json& remaining, const Json& jobs) {
  PodJudge judge;
  for (const AuditEvent& event : events) {
    if (!succeeded(event) || event.dry_run) continue;
    if (event.resource == "trainingjobs" && event.verb == "delete") {
      // With a finalizer (foreground) the job is answered back and goes when its pods have gone.
      const Json metadata = part(event.answer, "metadata");
      if (metadata.is_object() && !metadata.contains("finalizers"))
        judge.job_gone(text(metadata, "uid"));
      continue;
    }
    if (event.resource != "pods") continue;
    if (event.verb == "create") judge.created(event);
    if (event.verb == "delete") judge.condemned(event);
    const bool changed = event.verb == "patch" || event.verb == "update";
    if (changed && takes_member_off(event)) judge.condemned(event);
  }
  std::vector<std::string> violations = judge.take();
  std::set<std::string> living;
  for (const Json& job : jobs["items"])
    living.insert(text(job["metadata"], "uid"));
  for (const Json& pod : remaining["items"]) {
    const Json labels = pod["metadata"].value("labels", Json::object());
    // Without an owner: released by the deletion of its job that leaves orphans.
    if (pod["metadata"].value("ownerReferences", Json::array()).empty()) continue;
    if (labels.contains(kUid) && !living.contains(text(labels, kUid))) {
      violations.push_back("pod " + text(pod["metadata"], "namespace") + "/" +
                           text(pod["metadata"], "name") + " is left and its job is gone");
    }
  }
  return violations;
}

}  // namespace trainyard::testing_support

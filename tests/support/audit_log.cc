#include "tests/support/audit_log.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <utility>

#include "tests/support/api_objects.h"

namespace trainyard::testing_support {
namespace {

using Json = nlohmann::json;

AuditEvent event_of(const Json& line) {
  const Json& reference = at(line, "objectRef");
  const std::string subresource = text(reference, "subresource");
  const std::string uri = text(line, "requestURI");
  const Json& status = at(line, "responseStatus");
  // What follows from an eviction may be answered before it is, and no revision tells.
  const bool asked = subresource == "eviction";
  return {.time = text(line, asked ? "requestReceivedTimestamp" : "stageTimestamp"),
          .user = text(at(line, "user"), "username"),
          .verb = text(line, "verb"),
          .group = text(reference, "apiGroup"),
          .resource = text(reference, "resource") + (subresource.empty() ? "" : "/" + subresource),
          .name_space = text(reference, "namespace"),
          .name = text(reference, "name"),
          .code = static_cast<int>(number(status, "code")),
          .allowed = text(at(line, "annotations"), "authorization.k8s.io/decision") == "allow",
          .dry_run = uri.find("dryRun=All") != std::string::npos,
          .request = at(line, "requestObject"),
          .answer = at(line, "responseObject")};
}

std::string right(const std::string& group, const std::string& resource, const std::string& verb) {
  return (group.empty() ? "" : group + "/") + resource + " " + verb;
}

/// When the server stored what it answers: revisions of its store are counted over all objects. 0
/// where it does not say: a change of a pod whose grace is over is not stored but removes the pod
/// (apiserver's registry, ShouldDeleteDuringUpdate), and the answer shows the revision before.
int64_t revision_of(const AuditEvent& event) {
  const Json& metadata = at(event.answer, "metadata");
  if (event.verb == "patch" && at(metadata, "deletionGracePeriodSeconds") == 0) return 0;
  const std::string version = text(metadata, "resourceVersion");
  int64_t revision = 0;
  std::from_chars(version.data(), version.data() + version.size(), revision);
  return revision;
}

/// In the order of the answers, except where the store says that one came before another.
void put_in_order(std::vector<AuditEvent>& events) {
  std::stable_sort(events.begin(), events.end(),
                   [](const AuditEvent& a, const AuditEvent& b) { return a.time < b.time; });
  std::vector<std::pair<int64_t, size_t>> places;
  int64_t newest = 0;
  for (size_t i = 0; i < events.size(); ++i) {
    const int64_t revision = revision_of(events[i]);
    newest = std::max(newest, revision);
    places.emplace_back(revision > 0 ? revision : newest, i);
  }
  std::sort(places.begin(), places.end());
  std::vector<AuditEvent> ordered;
  ordered.reserve(events.size());
  for (const auto& [revision, i] : places)
    ordered.push_back(std::move(events[i]));
  events = std::move(ordered);
}

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
  put_in_order(events);
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
/// sending, or may not ask. Answers about the object (403 of admission, 404, 409) come after that.
bool body_never_came(const AuditEvent& event) {
  const bool ended_early =
      !event.allowed || event.code == 0 || event.code == 400 || event.code >= 500;
  return event.request.is_null() && ended_early;
}

}  // namespace

std::vector<std::string> unguarded_writes(const std::vector<AuditEvent>& events,
                                          std::string_view user) {
  std::vector<std::string> found;
  for (const AuditEvent& event : events) {
    if (event.user != user || event.resource == "events" || event.resource == "leases") continue;
    // What a Secret's request says is kept out of the log.
    if (body_never_came(event) || event.resource == "secrets") continue;
    const Json& metadata = at(event.request, "metadata");
    bool guarded = true;
    if (event.verb == "delete") guarded = !text(at(event.request, "preconditions"), "uid").empty();
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

}  // namespace trainyard::testing_support

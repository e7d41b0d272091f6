#include "tests/support/sim/api_server.h"

#include <algorithm>
#include <utility>

#include "common/text/rfc3339.h"

namespace trainyard::sim {
namespace {

using testing_support::AuditEvent;

constexpr char kForeground[] = "foregroundDeletion";
constexpr char kOrphan[] = "orphan";
/// terminationGracePeriodSeconds of a pod that says none (core/v1).
constexpr int64_t kDefaultGraceSeconds = 30;

std::string text_of(const Json& value) {
  return value.is_string() ? value.get<std::string>() : std::string();
}

Answer not_found(const Call& call) {
  return refusal(404, "NotFound", call.object.plural + " \"" + call.object.name + "\" not found");
}

Answer conflict(const Call& call, const std::string& why) {
  return refusal(409, "Conflict",
                 "Operation cannot be fulfilled on " + call.object.plural + " \"" +
                     call.object.name + "\": " + why);
}

/// Preconditions of a write: what it says of UID and version must be so.
std::optional<Answer> refuse_other(const Call& call, const Json& stored, const Json& wanted) {
  const std::string uid = text_of(member_of(wanted, "uid"));
  if (!uid.empty() && uid != meta_text(stored, "uid")) {
    return conflict(call, "Precondition failed: UID in precondition: " + uid +
                              ", UID in object meta: " + meta_text(stored, "uid"));
  }
  const std::string version = text_of(member_of(wanted, "resourceVersion"));
  if (!version.empty() && version != meta_text(stored, "resourceVersion")) {
    return conflict(call, "the object has been modified");
  }
  return std::nullopt;
}

/// What changes of the spec count: metadata.generation, for kinds that have one.
bool counts_generations(const Call& call) { return call.object.plural == "trainingjobs"; }

std::string group_of(const std::string& path, size_t& at) {
  constexpr std::string_view kCore = "/api/v1/";
  if (path.starts_with(kCore)) {
    at = kCore.size();
    return {};
  }
  constexpr std::string_view kGroups = "/apis/";
  const size_t group_end = path.find('/', kGroups.size());
  at = path.find('/', group_end + 1) + 1;
  return path.substr(kGroups.size(), group_end - kGroups.size());
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const size_t end = text.find(separator);
    parts.emplace_back(text.substr(0, end));
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  }
  return parts;
}

std::string percent_decoded(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size()) {
      decoded.push_back(
          static_cast<char>(std::stoi(std::string(text.substr(i + 1, 2)), nullptr, 16)));
      i += 2;
    } else {
      decoded.push_back(text[i]);
    }
  }
  return decoded;
}

std::string query_value(const std::string& query, std::string_view key) {
  for (const std::string& pair : split(query, '&')) {
    const size_t equals = pair.find('=');
    if (pair.substr(0, equals) == key && equals != std::string::npos)
      return percent_decoded(pair.substr(equals + 1));
  }
  return {};
}

std::string verb_of(kube::Method method, bool named) {
  switch (method) {
    case kube::Method::kGet:
      return named ? "get" : "list";
    case kube::Method::kPost:
      return "create";
    case kube::Method::kPut:
      return "update";
    case kube::Method::kPatch:
      return "patch";
    case kube::Method::kDelete:
      return "delete";
  }
  return {};
}

}  // namespace

Answer refusal(int code, const std::string& reason, const std::string& message,
               const std::string& field) {
  Json details = Json::object();
  if (!field.empty()) {
    details["causes"] =
        Json::array({{{"reason", "FieldValueInvalid"}, {"field", field}, {"message", message}}});
  }
  return {code,
          Json{{"kind", "Status"},
               {"apiVersion", "v1"},
               {"status", "Failure"},
               {"message", message},
               {"reason", reason},
               {"details", std::move(details)},
               {"code", code}},
          std::nullopt};
}

bool is_selected(const Json& object, const std::string& selector) {
  const Json& labels = member_of(member_of(object, "metadata"), "labels");
  for (size_t from = 0; from < selector.size();) {
    const size_t list = selector.find('(', from);
    size_t end = std::min(selector.find(',', from), selector.size());
    if (list < end) end = selector.find(')', list) + 1;
    const std::string term = selector.substr(from, end - from);
    from = end + 1;
    const size_t in = term.find(" in (");
    const size_t key_end = std::min(term.find('='), in);
    const Json& value = member_of(labels, term.substr(0, key_end).c_str());
    if (!value.is_string()) return false;
    if (in != std::string::npos) {
      const std::string wanted = "," + term.substr(in + 5, term.size() - in - 6) + ",";
      if (wanted.find("," + text_of(value) + ",") == std::string::npos) return false;
    } else if (key_end != std::string::npos && text_of(value) != term.substr(key_end + 1)) {
      return false;
    }
  }
  return true;
}

std::optional<Call> read_request(const kube::Request& request, const std::string& user) {
  if (!request.path.starts_with("/api")) return std::nullopt;
  Call call;
  call.user = user;
  size_t at = 0;
  call.group = group_of(request.path, at);
  std::vector<std::string> parts = split(std::string_view(request.path).substr(at), '/');
  if (parts.size() >= 3 && parts[0] == "namespaces") {
    call.object.ns = parts[1];
    parts.erase(parts.begin(), parts.begin() + 2);
  }
  if (parts.empty() || parts.size() > 3) return std::nullopt;
  call.object.plural = parts[0];
  if (parts.size() > 1) call.object.name = parts[1];
  if (parts.size() > 2) call.subresource = parts[2];
  call.verb = verb_of(request.method, parts.size() > 1);
  if (!request.body.empty()) call.body = Json::parse(request.body);
  call.dry_run = query_value(request.query, "dryRun") == "All";
  call.label_selector = query_value(request.query, "labelSelector");
  call.next = query_value(request.query, "continue");
  const std::string limit = query_value(request.query, "limit");
  if (!limit.empty()) call.limit = std::stoll(limit);
  call.any_version = call.verb == "list" && query_value(request.query, "resourceVersion") == "0";
  return call;
}

std::string ApiServer::now_text() const {
  return text::format_time(std::chrono::floor<std::chrono::seconds>(clock_.now()));
}

Answer ApiServer::call(Call call) {
  Answer answer = dispatch(call);
  if (call.verb == "get" || call.verb == "list") return answer;
  AuditEvent event;
  event.time = text::format_micro_time(clock_.now());
  event.user = call.user;
  event.verb = call.verb;
  event.group = call.group;
  event.resource = call.object.plural + (call.subresource.empty() ? "" : "/" + call.subresource);
  event.name_space = call.object.ns;
  event.name = call.verb == "create" && answer.code < 300 ? meta_text(answer.body, "name")
                                                          : call.object.name;
  event.code = answer.code;
  event.allowed = true;
  event.dry_run = call.dry_run;
  event.request = std::move(call.body);
  event.answer = answer.body;
  audit_.push_back(std::move(event));
  return answer;
}

Answer ApiServer::dispatch(const Call& call) {
  if (call.verb == "get") return get(call);
  if (call.verb == "list") return list(call);
  if (admission_) {
    if (std::optional<Answer> refused = admission_(call)) return *std::move(refused);
  }
  if (call.verb == "create") return create(call);
  if (call.verb == "update") return update(call);
  if (call.verb == "patch") return patch(call);
  if (call.verb == "delete") return remove(call);
  return refusal(405, "MethodNotAllowed", call.verb);
}

Answer ApiServer::get(const Call& call) const {
  const Object found = store_.find(call.object);
  return found ? Answer{200, found, {}} : not_found(call);
}

/// Pages go on at the first key that was not given, at the version of the first page; the store's
/// history is not asked for it, so that a list that was cut in two by a change is refused (410).
Answer ApiServer::list(const Call& call) {
  const size_t colon = call.next.find(':');
  if (!call.next.empty() && std::stoll(call.next) != store_.revision()) {
    return refusal(410, "Expired", "the provided continue parameter is too old");
  }
  const std::string from = call.next.empty() ? "" : call.next.substr(colon + 1);
  Json items = Json::array();
  const int64_t revision = call.any_version ? call.cached : store_.revision();
  Json metadata = {{"resourceVersion", std::to_string(revision)}};
  for (const auto& [key, object] :
       call.any_version ? store_.list_at(call.object.plural, call.object.ns, revision)
                        : store_.list(call.object.plural, call.object.ns)) {
    const std::string place = key.ns + "/" + key.name;
    if (place < from || !is_selected(*object, call.label_selector)) continue;
    if (call.limit > 0 && static_cast<int64_t>(items.size()) == call.limit) {
      metadata["continue"] = std::to_string(revision) + ":" + place;
      break;
    }
    items.push_back(*object);
  }
  Json page = {{"kind", "List"}, {"metadata", std::move(metadata)}};
  page["items"] = std::move(items);
  return {200, std::move(page), {}};
}

Answer ApiServer::create(const Call& call) {
  Json object = call.body;
  ObjectKey key = call.object;
  key.name = meta_text(object, "name");
  if (key.name.empty()) return refusal(422, "Invalid", "metadata.name: Required", "metadata.name");
  if (store_.find(key)) {
    return refusal(409, "AlreadyExists", key.plural + " \"" + key.name + "\" already exists");
  }
  Json& metadata = object["metadata"];
  if (!key.ns.empty()) metadata["namespace"] = key.ns;
  metadata["uid"] = "uid-" + std::to_string(next_uid_++);
  metadata["creationTimestamp"] = now_text();
  if (counts_generations(call)) {
    metadata["generation"] = 1;
    object.erase("status");
  }
  if (key.plural == "pods") object["status"] = {{"phase", "Pending"}};
  if (call.dry_run) {
    metadata["resourceVersion"] = "0";
    return {201, std::move(object), {}};
  }
  return {201, store_.put(key, std::move(object)), {}};
}

Answer ApiServer::update(const Call& call) {
  const Object before = store_.find(call.object);
  if (!before) return not_found(call);
  if (auto refused = refuse_other(call, *before, member_of(call.body, "metadata"))) return *refused;
  Json after = *before;
  if (call.subresource == "status") {
    after["status"] = member_of(call.body, "status");
  } else {
    after = call.body;
    for (const char* kept : {"uid", "creationTimestamp", "generation", "deletionTimestamp"}) {
      const Json& value = member_of((*before)["metadata"], kept);
      if (!value.is_null()) after["metadata"][kept] = value;
    }
    if (before->contains("status")) after["status"] = (*before)["status"];
  }
  return store_changed(call, before, std::move(after));
}

Answer ApiServer::patch(const Call& call) {
  const Object before = store_.find(call.object);
  if (!before) return not_found(call);
  const Json& wanted = member_of(call.body, "metadata");
  const std::string uid = text_of(member_of(wanted, "uid"));
  if (!uid.empty() && uid != meta_text(*before, "uid")) {
    return refusal(422, "Invalid", "metadata.uid: field is immutable", "metadata.uid");
  }
  if (auto refused = refuse_other(call, *before, wanted)) return *refused;
  Json after = *before;
  after.merge_patch(call.body);
  return store_changed(call, before, std::move(after));
}

/// What is as it was is not written; what waits for nothing more is gone.
Answer ApiServer::store_changed(const Call& call, const Object& before, Json after) {
  if (counts_generations(call) && member_of(after, "spec") != member_of(*before, "spec")) {
    after["metadata"]["generation"] = after["metadata"].value("generation", int64_t{0}) + 1;
  }
  const Json& finalizers = member_of(after["metadata"], "finalizers");
  const bool held = finalizers.is_array() && !finalizers.empty();
  if (is_terminating(after) && !held && call.object.plural != "pods") {
    store_.erase(call.object);
    return {200, std::move(after), {}};
  }
  after["metadata"]["resourceVersion"] = (*before)["metadata"]["resourceVersion"];
  if (after == *before) return {200, before, {}};
  return {200, store_.put(call.object, std::move(after)), {}};
}

Answer ApiServer::remove(const Call& call) {
  const Object before = store_.find(call.object);
  if (!before) return not_found(call);
  if (auto refused = refuse_other(call, *before, member_of(call.body, "preconditions"))) {
    return *refused;
  }
  if (call.object.plural == "pods") return remove_pod(call, before);
  Json after = *before;
  Json& metadata = after["metadata"];
  Json finalizers = metadata.value("finalizers", Json::array());
  const std::string propagation = text_of(member_of(call.body, "propagationPolicy"));
  if (!is_terminating(*before)) {
    if (propagation == "Foreground") finalizers.push_back(kForeground);
    if (propagation == "Orphan") finalizers.push_back(kOrphan);
  }
  if (!finalizers.empty()) {
    metadata["finalizers"] = std::move(finalizers);
    if (!is_terminating(*before)) metadata["deletionTimestamp"] = now_text();
    return store_changed(call, before, std::move(after));
  }
  store_.erase(call.object);
  return {200,
          Json{{"kind", "Status"},
               {"status", "Success"},
               {"metadata", Json::object()},
               {"details", {{"name", call.object.name}, {"uid", meta_text(*before, "uid")}}}},
          {}};
}

/// A pod ends by its kubelet, which deletes it with grace 0, unless it was never placed or is over.
Answer ApiServer::remove_pod(const Call& call, const Object& pod) {
  const std::string phase = text_of(member_of(member_of(*pod, "status"), "phase"));
  const bool placed = !text_of(member_of(member_of(*pod, "spec"), "nodeName")).empty();
  const Json& its_own = member_of(member_of(*pod, "spec"), "terminationGracePeriodSeconds");
  const Json& asked = member_of(call.body, "gracePeriodSeconds");
  int64_t grace = kDefaultGraceSeconds;
  if (its_own.is_number_integer()) grace = its_own.get<int64_t>();
  if (asked.is_number_integer()) grace = asked.get<int64_t>();
  if (!placed || phase == "Succeeded" || phase == "Failed") grace = 0;
  if (grace <= 0) {
    Json last = *pod;
    if (!is_terminating(last)) last["metadata"]["deletionTimestamp"] = now_text();
    last["metadata"]["deletionGracePeriodSeconds"] = 0;
    store_.erase(call.object);
    return {200, std::move(last), {}};
  }
  Json after = *pod;
  Json& metadata = after["metadata"];
  const bool sooner = metadata.value("deletionGracePeriodSeconds", grace + 1) > grace;
  if (!is_terminating(*pod) || sooner) {
    metadata["deletionTimestamp"] = now_text();
    metadata["deletionGracePeriodSeconds"] = grace;
  }
  return store_changed(call, pod, std::move(after));
}

}  // namespace trainyard::sim

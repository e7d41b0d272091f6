#include "tests/support/sim/store.h"

#include <stdexcept>
#include <utility>

namespace trainyard::sim {

Object Store::find(const ObjectKey& key) const {
  const auto found = objects_.find(key);
  return found == objects_.end() ? nullptr : found->second;
}

std::vector<std::pair<ObjectKey, Object>> Store::list(const std::string& plural,
                                                      const std::string& ns) const {
  std::vector<std::pair<ObjectKey, Object>> found;
  for (auto it = objects_.lower_bound({plural, ns, ""});
       it != objects_.end() && it->first.plural == plural; ++it) {
    if (!ns.empty() && it->first.ns != ns) break;
    found.push_back(*it);
  }
  return found;
}

std::vector<std::pair<ObjectKey, Object>> Store::list_at(const std::string& plural,
                                                         const std::string& ns,
                                                         int64_t revision) const {
  std::map<ObjectKey, Object> there;
  for (int64_t at = 1; at <= revision; ++at) {
    const Change& change = this->change(at);
    if (change.key.plural != plural || (!ns.empty() && change.key.ns != ns)) continue;
    if (change.type == kube::EventType::kDeleted) {
      there.erase(change.key);
    } else {
      there[change.key] = change.now;
    }
  }
  return {there.begin(), there.end()};
}

Object Store::put(const ObjectKey& key, Json object) {
  object["metadata"]["resourceVersion"] = std::to_string(revision() + 1);
  Object& slot = objects_[key];
  Change change;
  change.type = slot ? kube::EventType::kModified : kube::EventType::kAdded;
  change.key = key;
  change.before = slot;
  change.now = std::make_shared<const Json>(std::move(object));
  slot = change.now;
  Object stored = slot;
  record(std::move(change));
  return stored;
}

void Store::erase(const ObjectKey& key) {
  const auto found = objects_.find(key);
  if (found == objects_.end()) throw std::logic_error("erase of " + key.plural + "/" + key.name);
  Change change;
  change.type = kube::EventType::kDeleted;
  change.key = key;
  change.before = found->second;
  Json last = *found->second;
  last["metadata"]["resourceVersion"] = std::to_string(revision() + 1);
  change.now = std::make_shared<const Json>(std::move(last));
  objects_.erase(found);
  record(std::move(change));
}

void Store::record(Change change) {
  change.revision = revision() + 1;
  change.at = clock_.mono();
  history_.push_back(std::move(change));
  if (!hook_) return;
  const Change told = history_.back();  // the hook may add to the history
  hook_(told);
}

const Json& member_of(const Json& object, const char* key) {
  static const Json kNothing;
  if (!object.is_object()) return kNothing;
  const auto found = object.find(key);
  return found == object.end() ? kNothing : *found;
}

std::string meta_text(const Json& object, const char* key) {
  const Json& value = member_of(member_of(object, "metadata"), key);
  return value.is_string() ? value.get<std::string>() : std::string();
}

std::string label(const Json& object, const char* key) {
  const Json& value = member_of(member_of(member_of(object, "metadata"), "labels"), key);
  return value.is_string() ? value.get<std::string>() : std::string();
}

bool is_terminating(const Json& object) {
  return member_of(member_of(object, "metadata"), "deletionTimestamp").is_string();
}

}  // namespace trainyard::sim

#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/time.h"
#include "operator/cache/meta.h"
#include "operator/cache/sink.h"

namespace trainyard::cache {

/// Who is told of changes. Called from the reflector's thread, no lock held, after the store shows
/// the change; must not block for long; each may be empty. A name that was used again is an end and
/// an addition, never an update.
template <class T>
struct Handler {
  using Object = std::shared_ptr<const T>;
  std::function<void(const Object&)> added;
  std::function<void(const Object& before, const Object& now)> updated;
  /// The object as it was last known: as its end's event shows it, where one was seen.
  std::function<void(const Object&)> removed;
  /// A list asked for at `started` has been taken over, and its changes have been told.
  std::function<void(MonoTime started)> listed;
  /// An object that cannot be projected: it is taken out until it can be.
  std::function<void(const std::string& key, const Error&)> refused;
};

/// The projections of one kind of object: the only place where they live. T has a member
/// `Meta meta`. Thread-safe: any thread reads, the reflector writes. Objects are immutable and
/// stay valid while somebody holds them.
template <class T>
class Store final : public Sink {
 public:
  using Object = std::shared_ptr<const T>;
  /// Makes the projection, its `meta` included; may throw what nlohmann::json throws, which is a
  /// refusal.
  using Project = std::function<Result<T>(const nlohmann::json&)>;
  /// The values under which an object is found.
  using IndexBy = std::function<std::vector<std::string>(const T&)>;

  /// Indexes are fixed from the start, by name.
  Store(Project project, std::map<std::string, IndexBy> indexes, Handler<T> handler)
      : project_(std::move(project)), index_by_(std::move(indexes)), handler_(std::move(handler)) {
    for (const auto& [name, values] : index_by_)
      indexes_[name];
  }

  /// The object of this key ("namespace/name"), or nullptr.
  Object find(const std::string& key) const {
    const std::lock_guard lock(mutex_);
    const auto found = objects_.find(key);
    return found == objects_.end() ? nullptr : found->second;
  }

  /// All objects under a value of an index, in the order of their keys. The index must exist.
  std::vector<Object> find_by(const std::string& index, const std::string& value) const {
    const std::lock_guard lock(mutex_);
    const auto by_value = indexes_.find(index);
    TRAINYARD_CHECK(by_value != indexes_.end());
    const auto found = by_value->second.find(value);
    return found == by_value->second.end() ? std::vector<Object>() : values_of(found->second);
  }

  /// All objects, in the order of their keys.
  std::vector<Object> all() const {
    const std::lock_guard lock(mutex_);
    return values_of(objects_);
  }

  size_t size() const {
    const std::lock_guard lock(mutex_);
    return objects_.size();
  }

  /// The resourceVersion up to which everything is in it; empty before the first list.
  std::string version() const {
    const std::lock_guard lock(mutex_);
    return version_;
  }

  /// Whether a first list has been taken over and told to the handler.
  bool synced() const {
    const std::lock_guard lock(mutex_);
    return synced_;
  }

  /// Waits for that. `what` names the objects in errors: kDeadline, kAborted.
  Status wait_synced(Duration limit, const std::stop_token& stop, std::string_view what) const {
    std::unique_lock lock(mutex_);
    if (synced_changed_.wait_for(lock, stop, limit, [this] { return synced_; })) return {};
    const bool stopped = stop.stop_requested();
    return Error{stopped ? ErrorCode::kAborted : ErrorCode::kDeadline,
                 "waiting for the first list of " + std::string(what) +
                     (stopped ? ": asked to stop" : ": it did not come in time")};
  }

  void begin_list() override { staged_.clear(); }

  void list_item(const nlohmann::json& object) override {
    std::string key;
    if (Object projected = projected_or_refused(object, key)) staged_[key] = std::move(projected);
  }

  void end_list(MonoTime started, const std::string& version) override {
    std::vector<Change> changes;
    {
      const std::lock_guard lock(mutex_);
      std::vector<std::string> gone;
      for (const auto& [key, object] : objects_)
        if (staged_.find(key) == staged_.end()) gone.push_back(key);
      for (const std::string& key : gone)
        put_locked(key, nullptr, changes);
      for (auto& [key, object] : staged_)
        put_locked(key, std::move(object), changes);
      version_ = version;
    }
    staged_.clear();
    tell(changes);
    if (handler_.listed) handler_.listed(started);
    const std::lock_guard lock(mutex_);
    synced_ = true;
    synced_changed_.notify_all();
  }

  void event(kube::EventType type, const nlohmann::json& object) override {
    std::string version = version_of(object);
    if (type == kube::EventType::kBookmark) {
      const std::lock_guard lock(mutex_);
      version_ = std::move(version);
      return;
    }
    std::string key;
    Object projected = projected_or_refused(object, key);
    if (key.empty()) return;
    std::vector<Change> changes;
    {
      const std::lock_guard lock(mutex_);
      version_ = std::move(version);
      if (type == kube::EventType::kDeleted) {
        put_locked(key, nullptr, changes);
        const bool same =
            projected && !changes.empty() && changes.back().before->meta.uid == projected->meta.uid;
        if (same) changes.back().before = std::move(projected);
      } else {
        put_locked(key, std::move(projected), changes);
      }
    }
    tell(changes);
  }

 private:
  using Objects = std::map<std::string, Object>;

  struct Change {
    Object before;  ///< nullptr: an addition
    Object now;     ///< nullptr: an end
  };

  static std::vector<Object> values_of(const Objects& objects) {
    std::vector<Object> values;
    values.reserve(objects.size());
    for (const auto& [key, object] : objects)
      values.push_back(object);
    return values;
  }

  /// `key` is set where the object says who it is.
  Object projected_or_refused(const nlohmann::json& object, std::string& key) const {
    const Result<Meta> meta = read_meta(object);
    if (meta) key = key_of(*meta);
    const auto refused = [&](const Error& error) -> Object {
      if (handler_.refused) handler_.refused(key, error);
      return nullptr;
    };
    if (!meta) return refused(meta.error());
    try {
      Result<T> projected = project_(object);
      if (!projected) return refused(projected.error());
      return std::make_shared<const T>(*std::move(projected));
    } catch (const std::exception& error) {
      return refused(Error{ErrorCode::kInvalidData, error.what()});
    }
  }

  /// Puts or (nullptr) takes away one object, and notes what has changed.
  void put_locked(const std::string& key, Object now, std::vector<Change>& changes) {
    const auto found = objects_.find(key);
    Object before = found == objects_.end() ? nullptr : found->second;
    if (before && now && before->meta == now->meta) return;  // seen already
    if (before) index_locked(key, before, Indexing::kRemove);
    if (now) {
      index_locked(key, now, Indexing::kAdd);
      objects_[key] = now;
    } else if (before) {
      objects_.erase(found);
    }
    if (before && now && before->meta.uid != now->meta.uid) {
      changes.push_back({std::move(before), nullptr});
      before = nullptr;
    }
    if (before || now) changes.push_back({std::move(before), std::move(now)});
  }

  enum class Indexing { kAdd, kRemove };

  void index_locked(const std::string& key, const Object& object, Indexing indexing) {
    for (const auto& [name, index_by] : index_by_) {
      auto& by_value = indexes_[name];
      for (const std::string& value : index_by(*object)) {
        if (indexing == Indexing::kAdd) {
          by_value[value][key] = object;
          continue;
        }
        const auto found = by_value.find(value);
        if (found == by_value.end()) continue;
        found->second.erase(key);
        if (found->second.empty()) by_value.erase(found);
      }
    }
  }

  void tell(const std::vector<Change>& changes) const {
    for (const Change& change : changes) {
      if (!change.before) {
        if (handler_.added) handler_.added(change.now);
      } else if (!change.now) {
        if (handler_.removed) handler_.removed(change.before);
      } else if (handler_.updated) {
        handler_.updated(change.before, change.now);
      }
    }
  }

  const Project project_;
  const std::map<std::string, IndexBy> index_by_;
  const Handler<T> handler_;

  Objects staged_;  ///< of the list under way; only the reflector's thread

  mutable std::mutex mutex_;
  mutable std::condition_variable_any synced_changed_;
  Objects objects_;
  std::map<std::string, std::unordered_map<std::string, Objects>> indexes_;
  std::string version_;
  bool synced_ = false;
};

}  // namespace trainyard::cache

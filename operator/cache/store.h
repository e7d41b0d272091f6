#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stop_token>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/base/error.h"
#include "common/base/time.h"
#include "operator/cache/sink.h"

namespace trainyard::cache {

/// Who an object is. A projection has one as its member `meta`.
struct Meta {
  std::string ns;
  std::string name;
  std::string uid;
  std::string resource_version;

  bool operator==(const Meta&) const = default;
};

/// metadata of an object. Errors: kInvalidData where name or uid are no strings.
Result<Meta> read_meta(const nlohmann::json& object);

/// "namespace/name", or "name" without a namespace.
std::string key_of(std::string_view ns, std::string_view name);

/// Who is told of changes. Called from the reflector's thread, no lock held, after the store shows
/// the change; must not block for long. A name that was used again is a delete and an add.
template <class T>
struct Handler {
  using Object = std::shared_ptr<const T>;
  std::function<void(const Object&)> added;
  std::function<void(const Object& before, const Object& now)> updated;
  std::function<void(const Object&)> removed;  ///< the last that was known
  /// A list asked for at this time has been taken over, and its changes have been told.
  std::function<void(MonoTime started)> listed;
  /// An object that could not be projected. It is left out until it can be.
  std::function<void(const Meta&, const Error&)> refused;
};

/// The projections of one kind of object: the only place where they live. T has a member
/// `Meta meta`. Thread-safe: any thread reads, the reflector writes. Objects are immutable and
/// stay valid while somebody holds them.
template <class T>
class Store final : public Sink {
 public:
  using Object = std::shared_ptr<const T>;
  /// Makes the projection; may throw what nlohmann::json throws, which is a refusal.
  using Project = std::function<Result<T>(const nlohmann::json&)>;
  /// The values under which an object is found.
  using IndexBy = std::function<std::vector<std::string>(const T&)>;

  /// Indexes are fixed from the start, by name.
  Store(Project project, std::map<std::string, IndexBy> indexes, Handler<T> handler);

  /// The object of this key, or nullptr.
  Object find(const std::string& key) const;
  /// All objects under a value of an index, in the order of their keys.
  std::vector<Object> find_by(const std::string& index, const std::string& value) const;
  /// All objects, in the order of their keys.
  std::vector<Object> all() const;
  size_t size() const;

  /// Whether a first list has been taken over and told to the handler.
  bool synced() const;
  /// Waits for that. Errors: kDeadline, kAborted.
  Status wait_synced(Duration limit, std::stop_token stop, std::string_view what) const;

  // What the reflector calls.
  void begin_list() override;
  void list_item(const nlohmann::json& object) override;
  void end_list(MonoTime started) override;
  void event(kube::EventType type, const nlohmann::json& object) override;

 private:
  struct Change {
    Object before;
    Object now;
  };
  using Objects = std::map<std::string, Object>;

  Object project(const nlohmann::json& object, Meta& meta);
  void put_locked(const std::string& key, Object now, std::vector<Change>& changes);
  void index_locked(const Object& object, bool add);
  void tell(const std::vector<Change>& changes) const;

  const Project project_;
  const std::map<std::string, IndexBy> index_by_;
  const Handler<T> handler_;

  Objects staged_;  ///< only the reflector's thread

  mutable std::mutex mutex_;
  mutable std::condition_variable_any synced_changed_;
  Objects objects_;
  std::map<std::string, std::unordered_map<std::string, std::map<std::string, Object>>> indexes_;
  bool synced_ = false;
};

}  // namespace trainyard::cache

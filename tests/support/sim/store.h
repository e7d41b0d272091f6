#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/base/clock.h"
#include "operator/kube/client.h"

/// A simulated Kubernetes: what stands behind the operator's transport when no server does. One
/// thread, a clock that the simulation moves, every choice from a seed.
namespace trainyard::sim {

using Json = nlohmann::json;
using Object = std::shared_ptr<const Json>;

/// Names one object; `plural` is the resource's ("pods").
struct ObjectKey {
  std::string plural;
  std::string ns;  ///< empty for cluster-scoped ones
  std::string name;

  auto operator<=>(const ObjectKey&) const = default;  // NOLINT: clang-tidy 14 sees a 0 in it
};

/// One step of the world. Revisions are those of the whole store, one a change.
struct Change {
  int64_t revision = 0;
  MonoTime at{};
  kube::EventType type = kube::EventType::kAdded;
  ObjectKey key;
  Object before;  ///< nullptr for kAdded
  Object now;     ///< of kDeleted: the object as it was last, under the deletion's revision
};

/// What etcd is to an API server: the truth, with its history. Resource versions are revisions.
class Store {
 public:
  /// `clock` outlives it.
  explicit Store(const Clock& clock) : clock_(clock) {}

  /// nullptr where there is none.
  Object find(const ObjectKey& key) const;
  /// Of one namespace, or of all where `ns` is empty, by key.
  std::vector<std::pair<ObjectKey, Object>> list(const std::string& plural,
                                                 const std::string& ns) const;
  /// The same as it was at an older revision.
  std::vector<std::pair<ObjectKey, Object>> list_at(const std::string& plural,
                                                    const std::string& ns, int64_t revision) const;
  /// Stores the object as it is, but for its resourceVersion, which it gets.
  Object put(const ObjectKey& key, Json object);
  /// The object must be there.
  void erase(const ObjectKey& key);

  /// Of the newest change.
  int64_t revision() const { return static_cast<int64_t>(history_.size()); }
  /// The change of a revision between 1 and revision().
  const Change& change(int64_t revision) const {
    return history_[static_cast<size_t>(revision - 1)];
  }
  /// Changes up to this one can be watched no more.
  int64_t compacted() const { return compacted_; }
  void compact() { compacted_ = revision(); }
  /// Called after each change.
  void on_change(std::function<void(const Change&)> hook) { hook_ = std::move(hook); }

 private:
  void record(Change change);

  const Clock& clock_;
  std::map<ObjectKey, Object> objects_;
  std::vector<Change> history_;
  int64_t compacted_ = 0;
  std::function<void(const Change&)> hook_;
};

/// metadata.KEY as a text, else empty.
std::string meta_text(const Json& object, const char* key);
/// metadata.labels.KEY, else empty.
std::string label(const Json& object, const char* key);
/// Whether metadata.deletionTimestamp is there.
bool is_terminating(const Json& object);
/// The member, or null.
const Json& member_of(const Json& object, const char* key);

}  // namespace trainyard::sim

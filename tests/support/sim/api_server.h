#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "operator/kube/transport.h"
#include "tests/support/audit_log.h"
#include "tests/support/sim/store.h"

namespace trainyard::sim {

/// One request, after its path and its body were read.
struct Call {
  std::string user;
  std::string verb;   ///< get, list, create, update, patch, delete
  std::string group;  ///< empty: core
  ObjectKey object;   ///< of a list and of a creation without a name
  std::string subresource;
  Json body;
  bool dry_run = false;
  std::string label_selector;
  std::string next;   ///< continue token of a list
  int64_t limit = 0;  ///< of a list; 0: everything at once
  /// Of a list: any state is new enough (resourceVersion=0), so that a watch cache answers it.
  bool any_version = false;
  int64_t cached = 0;  ///< where any_version: the revision that the server's watch cache has seen
};

struct Answer {
  int code = 200;
  testing_support::SharedJson body;
  std::optional<Duration> retry_after;
};

/// A Status object as the API server refuses with; `field` is that of one cause, where not empty.
Answer refusal(int code, const std::string& reason, const std::string& message,
               const std::string& field = {});

/// Whether an object is in a selection: "key", "key=value", "key in (a,b)", with commas between;
/// all for "".
bool is_selected(const Json& object, const std::string& selector);

/// The verbs of kube-apiserver over a Store, for any number of servers in front of one etcd: they
/// differ in what their watch caches have seen (WatchSource), not in reads of the newest state and
/// writes. Uniqueness, compare-and-swap by resource version and UID, status as a part of its own,
/// generations, merge patches, dry runs, graceful deletion of pods, finalizers and propagation as
/// in apimachinery's registry and the pod strategy's CheckGracefulDelete. Every request is written
/// to an audit log in the form of the real one.
class ApiServer {
 public:
  /// May refuse a request before it is carried out: admission plugins, quotas.
  using Admission = std::function<std::optional<Answer>(const Call&)>;

  /// Both outlive it.
  ApiServer(Store& store, const Clock& clock) : store_(store), clock_(clock) {}

  /// Carries out one request.
  Answer call(Call call);
  void set_admission(Admission admission) { admission_ = std::move(admission); }
  /// Every request so far that was not a read.
  const std::vector<testing_support::AuditEvent>& audit() const { return audit_; }

  Store& store() { return store_; }
  const Clock& clock() const { return clock_; }

 private:
  Answer dispatch(const Call& call);
  Answer get(const Call& call) const;
  Answer list(const Call& call);
  Answer create(const Call& call);
  Answer update(const Call& call);
  Answer patch(const Call& call);
  Answer remove(const Call& call);
  Answer remove_pod(const Call& call, const Object& pod);
  Answer store_changed(const Call& call, const Object& before, Json after);
  std::string now_text() const;

  Store& store_;
  const Clock& clock_;
  Admission admission_;
  std::vector<testing_support::AuditEvent> audit_;
  int64_t next_uid_ = 1;
};

/// Reads the path and the query of a request; nullopt for a path that is no resource's.
std::optional<Call> read_request(const kube::Request& request, const std::string& user);

}  // namespace trainyard::sim

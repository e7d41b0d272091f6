#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>

#include "common/base/clock.h"
#include "tests/support/sim/api_server.h"

namespace trainyard::sim {

/// Everybody but the operator: scheduler, kubelets, node lifecycle and garbage collector. They look
/// at the truth, act through the API, and do at most one thing to an object in a round.
class Controllers {
 public:
  struct Options {
    /// Between a node that is not ready and the deletion of its pods.
    Duration toleration = std::chrono::seconds(30);
    /// Whether one of them is late in a round; empty: never.
    std::function<bool()> late;
  };

  /// `api` outlives it.
  Controllers(ApiServer& api, Options options) : api_(api), options_(std::move(options)) {}

  /// One round of all; whether anything is left to do in the next.
  bool round();
  /// When the next thing is due that only time brings; nullopt: nothing.
  std::optional<MonoTime> next_due() const;

  // ---- Nodes -----------------------------------------------------------------------------------
  /// A node with room for so many pods.
  void add_node(const std::string& name, int64_t pods);
  void set_node_ready(const std::string& name, bool ready);
  /// It is gone for good, and what ran on it with it.
  void remove_node(const std::string& name);
  /// Whether the scheduler takes it into account.
  void set_room(const std::string& name, int64_t pods);

  // ---- Programs --------------------------------------------------------------------------------
  /// The pod's trainer exits in the next round, if it runs then.
  void exit_pod(const std::string& uid, int code);

 private:
  using Pods = std::vector<std::pair<ObjectKey, Object>>;

  bool is_ready(const std::string& node) const;
  bool is_late() const { return options_.late && options_.late(); }
  bool schedule(const Pods& pods);
  bool run_pods(const Pods& pods);
  bool run_pod(const ObjectKey& key, const Json& pod);
  bool lose_pods(const Pods& pods);
  bool collect();
  bool collect_owned(const std::set<std::string>& owners);
  bool finalize_jobs();
  bool release_orphans(const std::string& owner);
  std::vector<std::pair<ObjectKey, Object>> owned_by(const std::string& owner) const;
  Answer write(const std::string& user, const std::string& verb, const ObjectKey& key, Json body,
               const std::string& subresource = {});

  ApiServer& api_;
  const Options options_;
  struct Lost {
    MonoTime since{};
    bool evicted = false;  ///< its pods have been deleted
  };

  std::map<std::string, int> exits_;  ///< by pod UID
  std::map<std::string, Lost> lost_;  ///< by node
  int64_t addresses_ = 0;             ///< that pods were given
};

/// Pods whose container has ended: containerStatuses and phase of a pod status.
Json ended_status(const Json& status, int code, const std::string& at);

}  // namespace trainyard::sim

#pragma once

#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "common/log/log.h"
#include "control/reconciler.h"
#include "operator/cache/reflector_runner.h"
#include "operator/cluster/kube_cluster.h"
#include "operator/kube/client.h"
#include "tests/support/sim/transport.h"

namespace trainyard::sim {

/// Keeps reflectors for whoever steps them one arrow at a time.
class SteppedRunner final : public cache::ReflectorRunner {
 public:
  /// Both outlive it.
  SteppedRunner(SimTransport& transport, const Clock& clock)
      : transport_(transport), clock_(clock) {}

  void start(cache::Reflector& reflector) override;
  void stop(cache::Reflector& reflector) override;

  /// One arrow of the first reflector, from the `first`th on, that need not wait; whether there was
  /// one.
  bool step(size_t first);
  /// When one need not wait, though nothing happens.
  std::optional<MonoTime> next_due() const;

 private:
  struct Driven {
    cache::Reflector* reflector = nullptr;
    MonoTime not_before{};
  };
  MonoTime due_of(const Driven& driven) const;

  SimTransport& transport_;
  const Clock& clock_;
  std::vector<Driven> driven_;
};

/// One operator process without its threads and its leader election: transport, client, caches,
/// KubeCluster and Reconciler as they are in the program. Whether it leads, the simulation says.
class Replica {
 public:
  struct Options {
    std::string name;  ///< of the process, in the audit log and in events
    uint64_t seed = 0;
    SimTransport::Hooks hooks;
    /// Of its log, for people; nullptr: nothing.
    Logger* logger = nullptr;
    control::RateLimits limits;
  };

  /// All outlive it. It begins to fill its caches.
  Replica(ApiServer& api, WatchServer& server, const Clock& clock, Options options);
  ~Replica();
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;

  bool step_caches(size_t first) { return runner_.step(first); }
  /// Reconciles one job that is due, if the caches are filled; whether it did.
  bool reconcile_next();
  std::optional<MonoTime> next_due(bool leads) const;

  SimTransport& transport() { return transport_; }
  cluster::KubeCluster& cluster() { return cluster_; }
  control::Reconciler& reconciler() { return reconciler_; }
  const std::string& name() const { return name_; }
  /// The audit log's name of all processes of the operator begins with this.
  static constexpr char kUser[] = "system:serviceaccount:trainyard-system:trainyard-operator";

 private:
  const std::string name_;
  const std::unique_ptr<Logger> nowhere_ = Logger::to_nowhere();
  std::mt19937_64 random_;
  SimTransport transport_;
  kube::Client client_;
  SteppedRunner runner_;
  cluster::KubeCluster cluster_;
  control::Reconciler reconciler_;
};

}  // namespace trainyard::sim

#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "common/base/error.h"
#include "operator/kube/client.h"
#include "tests/support/control_plane.h"
#include "tests/support/proxied_operator.h"

namespace trainyard::testing_support {

/// Two operators of one namespace, of which one leads and the other stands by, each behind a fault
/// proxy of its own. One that has ended, however it did, stays so until stand() starts it again:
/// who takes over is never the same process's successor. One thread uses it.
class OperatorPair {
 public:
  /// The Lease, which lies in the namespace that they serve.
  struct Lease {
    std::string holder;        ///< identity; empty: nobody
    int64_t transitions = -1;  ///< -1: there is no Lease
  };

  /// Gives the operator's ServiceAccount the rights in `name_space` that its Role has in
  /// trainyard-system: those on a Lease.
  static Status grant_lease(const kube::Client& admin, const std::string& name_space);

  /// As of ProxiedOperator; `admin` outlives it, and grant_lease() was called. None is started.
  OperatorPair(const ControlPlane& plane, const kube::Client& admin,
               const nlohmann::json& kubeconfig, const std::filesystem::path& folder,
               std::string name_space);

  ProxiedOperator& first() { return *members_[0]; }
  ProxiedOperator& second() { return *members_[1]; }

  /// Starts who does not run, its proxy passing everything, and waits until one leads and the other
  /// has seen whose the Lease is. The first leads where none has led before. An error also where
  /// one has ended that was neither killed nor has lost its lease.
  Status stand();
  /// Starts one and waits until it has filled its caches and looked at the Lease, or has ended.
  Status start(ProxiedOperator& member, FaultScript script = {});
  /// As of the last stand().
  ProxiedOperator& leader() { return *members_[leader_]; }
  ProxiedOperator& standby() { return *members_[1 - leader_]; }

  Lease lease() const;
  /// Waits until that one holds the Lease.
  Status await_leader(ProxiedOperator& member) const;

  /// Asks both to end; as ProxiedOperator::stop().
  std::string stop();
  std::string log() const;

 private:
  const kube::Client& admin_;
  const std::string namespace_;
  std::array<std::unique_ptr<ProxiedOperator>, 2> members_;
  std::array<bool, 2> started_{};
  size_t leader_ = 0;
};

}  // namespace trainyard::testing_support

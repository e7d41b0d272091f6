#pragma once

#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "tests/support/control_plane.h"
#include "tests/support/fault_proxy.h"
#include "tests/support/operator_process.h"

namespace trainyard::testing_support {

/// A `trainyard-operator` under its own ServiceAccount, which serves one namespace and sees its API
/// server through a fault proxy. A fault that kills it starts it again at once, as a kubelet would.
class ProxiedOperator {
 public:
  /// Files go into `folder`, which is made. `kubeconfig`: as write_operator_kubeconfig writes it.
  /// It is not started yet.
  ProxiedOperator(const ControlPlane& plane, const nlohmann::json& kubeconfig,
                  std::filesystem::path folder, std::string name_space);
  /// Kills it.
  ~ProxiedOperator();

  FaultProxy& proxy() { return *proxy_; }
  void start();
  /// Asks it to end; what is wrong with how it ended, or with how one before it ended; empty:
  /// nothing.
  std::string stop();
  /// How often it was killed.
  int kills() const;
  /// What all its processes have said.
  std::string log() const;

 private:
  void kill_and_start();
  void start_locked();

  const std::filesystem::path folder_;
  const std::string namespace_;
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<OperatorProcess>> processes_;
  std::string complaint_;
  int kills_ = 0;
  std::unique_ptr<FaultProxy> proxy_;  ///< last: its threads call kill_and_start()
};

}  // namespace trainyard::testing_support

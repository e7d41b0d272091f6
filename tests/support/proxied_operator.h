#pragma once

#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "tests/support/control_plane.h"
#include "tests/support/fault_proxy.h"
#include "tests/support/operator_process.h"

namespace trainyard::testing_support {

/// A `trainyard-operator` under its own ServiceAccount, which serves one namespace and sees its API
/// server through a fault proxy.
class ProxiedOperator {
 public:
  /// What follows a fault that kills it.
  enum class Revival {
    kAtOnce,  ///< it is started again, as by a kubelet
    kNone,    ///< the test calls start()
  };
  struct Options {
    std::vector<std::string> flags;  ///< beside those that every operator of a test has
    Revival revival = Revival::kAtOnce;
  };

  /// Files go into `folder`, which is made. `kubeconfig`: as write_operator_kubeconfig writes it.
  /// It is not started yet.
  ProxiedOperator(const ControlPlane& plane, const nlohmann::json& kubeconfig,
                  std::filesystem::path folder, std::string name_space, Options options);
  /// Kills it.
  ~ProxiedOperator();

  FaultProxy& proxy() { return *proxy_; }
  void start();
  /// As a fault that kills it.
  void kill();
  /// Asks it to end; what is wrong with how it ended, or with how one before it ended; empty:
  /// nothing. One that does not run, and that the test revives, has nothing to end.
  std::string stop();
  /// How the newest process has ended, once it has.
  std::optional<ChildEnd> end();
  /// How often it was killed.
  int kills() const;
  /// The identity under which the newest process takes part in an election; empty: it has not said
  /// it yet.
  std::string identity() const;
  /// Whether the newest process has filled its caches.
  bool is_ready() const;
  /// What all its processes have said.
  std::string log() const;

 private:
  void start_locked();
  std::optional<ChildEnd> end_locked();

  const std::filesystem::path folder_;
  const std::string namespace_;
  const Options options_;
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<OperatorProcess>> processes_;
  std::string complaint_;
  int kills_ = 0;
  std::unique_ptr<FaultProxy> proxy_;  ///< last: its threads call kill()
};

}  // namespace trainyard::testing_support

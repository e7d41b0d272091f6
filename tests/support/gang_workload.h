#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "common/base/error.h"
#include "operator/kube/client.h"

namespace trainyard::testing_support {

/// A job through whose life an operator is put on trial: a gang of four is created, a pod of it is
/// killed, it is scaled to two, it is deleted. After each of these everything must come right
/// within the patience, and the counts in status must be exact. Asks the API server as its
/// administrator, past any proxy. Errors name what was awaited and what was there instead.
class GangWorkload {
 public:
  /// `admin` outlives it; the namespace is there.
  GangWorkload(const kube::Client& admin, std::string name_space, std::string job,
               std::chrono::seconds patience = std::chrono::seconds(120));

  /// All of it.
  Status run() const;

  Status create() const;
  Status kill_a_pod() const;
  Status scale() const;
  Status remove() const;

  /// The second half of remove(): nothing of the job is left.
  Status await_gone() const;

  /// Deletes a pod of the gang; its name.
  Result<std::string> delete_a_pod() const;
  /// Waits until the job runs on `nodes` pods, all others being gone, with these counts and no
  /// others.
  Status await_running(int64_t nodes, int64_t restarts, int64_t resizes) const;

 private:
  nlohmann::json status() const;
  /// The pods of the job that are there, on their way out or not.
  Result<std::vector<nlohmann::json>> pods() const;
  std::string names_of_pods() const;

  const kube::Client& admin_;
  const std::string namespace_;
  const std::string job_;
  const std::chrono::seconds patience_;
};

/// Makes a namespace in which pods can be made.
Status make_namespace(const kube::Client& admin, const std::string& name);

}  // namespace trainyard::testing_support

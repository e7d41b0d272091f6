#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "common/base/clock.h"
#include "operator/kube/client.h"

namespace trainyard::testing_support {

/// Answers `kubectl get ... -o json` over connections that stay open. Tests look many times a
/// second, and each kubectl is a process that reads its configuration, discovers the API and takes
/// a tenth of a second of a processor before it asks.
class ApiReader {
 public:
  /// As the user of that kubeconfig.
  explicit ApiReader(const std::filesystem::path& kubeconfig);

  /// As the same user, for everything else.
  const kube::Client& client() const { return *client_; }

  /// Whether these words are of those that get() knows: one kind that tests ask for often, perhaps
  /// a name or `-l SELECTOR`.
  static bool knows(const std::vector<std::string>& words);

  /// What kubectl would print for the words after `get`, but for metadata.managedFields; null where
  /// it would fail.
  nlohmann::json get(const std::string& name_space, const std::vector<std::string>& words) const;

 private:
  nlohmann::json list(const kube::Resource& resource, const std::string& name_space,
                      const std::string& selector) const;

  const SystemClock clock_;
  std::unique_ptr<kube::Transport> transport_;
  std::unique_ptr<kube::Client> client_;
};

}  // namespace trainyard::testing_support

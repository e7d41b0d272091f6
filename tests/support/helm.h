#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/operator_process.h"

namespace trainyard::testing_support {

/// A test of charts/trainyard: helm as a user has it, in the test's namespace, where the restricted
/// Pod Security Standard is enforced.
class ChartTest : public JobTest {
 protected:
  void SetUp() override;

  static std::filesystem::path chart();
  /// helm in the test's namespace.
  CommandResult helm(const std::vector<std::string>& arguments) const;
  ChildProcess::Spec helm_spec(const std::vector<std::string>& arguments) const;
  /// helm that must succeed; its output.
  std::string must_helm(const std::vector<std::string>& arguments) const;
  /// Writes a kubeconfig for a ServiceAccount of the test's namespace.
  std::filesystem::path kubeconfig_of(const std::string& service_account) const;
};

/// The command line of the operator's container in a Deployment, fit for this machine: listening on
/// free ports of the loopback interface.
std::vector<std::string> operator_arguments(const nlohmann::json& deployment);

}  // namespace trainyard::testing_support

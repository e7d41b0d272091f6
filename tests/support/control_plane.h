#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json_fwd.hpp>

#include "tests/support/api_reader.h"
#include "tests/support/child_process.h"
#include "tests/support/temporary_directory.h"

namespace trainyard::testing_support {

/// A command that has ended.
struct CommandResult {
  int exit_code = -1;
  std::string output;
  std::string errors;
};

/// Runs a command to its end. A command that takes longer than `timeout` is killed, and its exit
/// code -1.
CommandResult run_command(const ChildProcess::Spec& spec, std::chrono::milliseconds timeout);

/// A real Kubernetes control plane with fake nodes and our manifests applied
/// (tests/apiserver/plane). Under ctest all tests of a run share one, which the fixture `plane`
/// starts and ends (its folder is TRAINYARD_TEST_PLANE); a test program run by hand starts one of
/// its own and ends it.
class ControlPlane {
 public:
  ControlPlane();
  ~ControlPlane();
  ControlPlane(const ControlPlane&) = delete;
  ControlPlane& operator=(const ControlPlane&) = delete;

  const std::filesystem::path& folder() const { return folder_; }
  std::filesystem::path kubeconfig() const { return folder_ / "admin.kubeconfig"; }
  std::filesystem::path audit_log() const { return folder_ / "audit.log"; }
  /// Whether tests of that suite have been begun on it.
  bool has_seen(const std::string& suite) const {
    return std::filesystem::exists(folder_ / "suites" / suite);
  }

 private:
  std::filesystem::path folder_;
  bool own_ = false;
};

/// A test against the control plane: a namespace of its own, and kubectl, as a user has it.
class ApiServerTest : public ::testing::Test {
 protected:
  using Json = nlohmann::json;

  static void SetUpTestSuite();
  static void TearDownTestSuite();
  void SetUp() override;
  void TearDown() override;

  static const ControlPlane& plane() { return *plane_; }
  const std::string& name_space() const { return namespace_; }
  const std::filesystem::path& folder() const { return folder_.path(); }

  /// The API server as its administrator has it, over connections that stay open.
  static const kube::Client& api() { return reader_->client(); }
  /// kubectl in the test's namespace.
  CommandResult kubectl(const std::vector<std::string>& arguments) const;
  /// The same with `text` in a file named by `-f` at the end.
  CommandResult kubectl_with(std::vector<std::string> arguments, const std::string& text) const;
  /// kubectl that must succeed; its output.
  std::string must(const std::vector<std::string>& arguments) const;
  std::string must_with(const std::vector<std::string>& arguments, const std::string& text) const;
  /// `kubectl get ... -o json`, by kubectl or, where it is asked often, by ApiReader; null when it
  /// failed.
  Json get(const std::vector<std::string>& what) const;

  /// True once `condition` holds, looked at every 100 ms; false after `deadline`.
  static bool wait_until(const std::function<bool()>& condition,
                         std::chrono::seconds deadline = kDeadline);

  static constexpr std::chrono::seconds kDeadline{60};

 private:
  /// Writes until it has been written: where the API server was killed, connections to it are found
  /// dead one by one.
  static ::testing::AssertionResult comes_to_be(
      const std::function<std::optional<kube::ApiError>()>& write);

  static std::unique_ptr<ControlPlane> plane_;  ///< of all suites of the program
  static std::unique_ptr<ApiReader> reader_;    ///< of plane_
  const TemporaryDirectory folder_;
  std::string namespace_;
};

}  // namespace trainyard::testing_support

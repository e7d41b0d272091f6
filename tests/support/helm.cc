#include "tests/support/helm.h"

#include <atomic>
#include <fstream>

#include <nlohmann/json.hpp>

#include "tests/support/paths.h"

namespace trainyard::testing_support {
namespace {

constexpr std::chrono::minutes kHelmTimeout{3};

}  // namespace

void ChartTest::SetUp() {
  JobTest::SetUp();
  must({"label", "namespace", name_space(), "pod-security.kubernetes.io/enforce=restricted",
        "pod-security.kubernetes.io/warn=restricted"});
}

std::filesystem::path ChartTest::chart() { return source_path("charts/trainyard"); }

ChildProcess::Spec ChartTest::helm_spec(const std::vector<std::string>& arguments) const {
  static std::atomic<int> calls{0};
  const std::string call = std::to_string(++calls);
  ChildProcess::Spec spec{.argv = {plane().folder() / "helm"},
                          .environment = {{"HELM_CACHE_HOME", folder() / "helm-cache"},
                                          {"HELM_CONFIG_HOME", folder() / "helm-config"},
                                          {"HELM_DATA_HOME", folder() / "helm-data"},
                                          {"KUBECONFIG", plane().kubeconfig()}},
                          .output = folder() / ("helm-out-" + call),
                          .errors = folder() / ("helm-err-" + call)};
  spec.argv.insert(spec.argv.end(), arguments.begin(), arguments.end());
  spec.argv.insert(spec.argv.end(), {"--namespace", name_space()});
  return spec;
}

CommandResult ChartTest::helm(const std::vector<std::string>& arguments) const {
  return run_command(helm_spec(arguments), kHelmTimeout);
}

std::string ChartTest::must_helm(const std::vector<std::string>& arguments) const {
  CommandResult result = helm(arguments);
  EXPECT_EQ(result.exit_code, 0) << "helm " << arguments.front() << "\n"
                                 << result.output << result.errors;
  return std::move(result.output);
}

std::filesystem::path ChartTest::kubeconfig_of(const std::string& service_account) const {
  std::string token = must({"create", "token", service_account, "--duration", "1h"});
  token.erase(token.find_last_not_of("\r\n") + 1);
  Json config = Json::parse(must({"config", "view", "--raw", "-o", "json"}));
  config["users"] = {{{"name", "account"}, {"user", {{"token", token}}}}};
  config["contexts"][0]["context"]["user"] = "account";
  config["contexts"][0]["context"]["namespace"] = name_space();
  const std::filesystem::path path = folder() / (service_account + ".kubeconfig");
  std::ofstream(path) << config.dump();
  return path;
}

std::vector<std::string> operator_arguments(const nlohmann::json& deployment) {
  std::vector<std::string> arguments;
  for (std::string argument : deployment["spec"]["template"]["spec"]["containers"][0]["args"]) {
    const size_t value = argument.find("=:");
    if (value != std::string::npos) argument = argument.substr(0, value) + "=127.0.0.1:0";
    arguments.push_back(std::move(argument));
  }
  return arguments;
}

}  // namespace trainyard::testing_support

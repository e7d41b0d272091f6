#include "operator/runtime/options.h"

#include <ostream>
#include <sstream>

#include <CLI/CLI.hpp>

#include "common/api/validate.h"
#include "common/worker_contract.h"

namespace trainyard::operator_runtime {
namespace {

constexpr char kDescription[] =
    "Runs TrainingJobs on a Kubernetes cluster: makes their pods, keeps them right, says in status "
    "what is.";

constexpr char kFooter[] =
    "The API server is found by --kubeconfig, else the variable KUBECONFIG, else the pod's "
    "service\n"
    "account, else ~/.kube/config. SIGTERM ends it in order: what is begun is ended, the lease "
    "given\n"
    "up.\n"
    "Exit codes: 0 stopped by a signal; 64 wrong usage or configuration; 75 the API server cannot "
    "be\n"
    "reached, or the leadership was lost (start it again); 70 a bug.\n"
    "Example: trainyard-operator --kubeconfig ~/.kube/config --namespaces team-a,team-b";

std::string check_namespace(const std::string& name) {
  return api::is_dns_label(name) ? "" : "\"" + name + "\" is no name of a namespace";
}

void add_connection_flags(CLI::App& app, OperatorOptions& options) {
  app.add_option("--kubeconfig", options.kubeconfig, "File with the API server and credentials");
  app.add_option("--context", options.context, "Context of the kubeconfig; default: its current");
  app.add_option("--namespaces", options.namespaces,
                 "Namespaces to serve, separated by commas; default: all")
      ->delimiter(',')
      ->check(check_namespace);
  app.add_option("--kube-api-qps", options.api_qps, "Requests a second to the API server, at most")
      ->check(CLI::Range(1.0, 1e6))
      ->capture_default_str();
  app.add_option("--kube-api-burst", options.api_burst, "Requests at once after a rest, at most")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
}

void add_work_flags(CLI::App& app, OperatorOptions& options) {
  app.add_flag("--leader-elect,!--no-leader-elect", options.leader_elect,
               "Work only while holding the Lease trainyard-operator, so that several may run");
  app.add_option("--leader-elect-namespace", options.leader_elect_namespace,
                 "Namespace of the Lease; default: the operator's own")
      ->check(check_namespace);
  app.add_option("--max-concurrent-reconciles", options.workers, "Jobs worked on at once")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  app.add_option("--worker-image", options.worker_image,
                 "Image of pods whose job has an engine and names none");
}

void add_telling_flags(CLI::App& app, OperatorOptions& options) {
  app.add_option("--metrics-bind-address", options.metrics_address,
                 "Where /metrics is served; 0: nowhere")
      ->capture_default_str();
  app.add_option("--health-probe-bind-address", options.probe_address,
                 "Where /healthz and /readyz are served; 0: nowhere")
      ->capture_default_str();
  app.add_option("--log-format", options.log_format, "How the log is written")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, LogFormat>{{"json", LogFormat::kJson}, {"text", LogFormat::kText}}))
      ->option_text("json|text [json]");
  app.add_option("--log-level", options.log_level, "What is logged, at least")
      ->transform(
          CLI::CheckedTransformer(std::map<std::string, LogLevel>{{"debug", LogLevel::kDebug},
                                                                  {"info", LogLevel::kInfo},
                                                                  {"warning", LogLevel::kWarning},
                                                                  {"error", LogLevel::kError}}))
      ->option_text("debug|info|warning|error [info]");
}

}  // namespace

bool is_off(const std::string& address) { return address.empty() || address == "0"; }

std::variant<OperatorOptions, EndsAtOnce> read_options(const std::vector<std::string>& arguments,
                                                       std::ostream& out, std::ostream& err) {
  OperatorOptions options;
  CLI::App app{kDescription, "trainyard-operator"};
  app.set_version_flag("--version", "trainyard-operator " TRAINYARD_VERSION);
  app.footer(kFooter);
  add_connection_flags(app, options);
  add_work_flags(app, options);
  add_telling_flags(app, options);
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());  // as CLI11 wants them
  try {
    app.parse(reversed);
  } catch (const CLI::ParseError& error) {
    const bool asked = error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success);
    app.exit(error, out, err);
    return EndsAtOnce{asked ? 0 : contract::kExitBadConfig};
  }
  return options;
}

}  // namespace trainyard::operator_runtime

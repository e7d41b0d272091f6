#include "operator/runtime/options.h"

#include <charconv>
#include <ostream>
#include <sstream>

#include <CLI/CLI.hpp>

#include "common/api/validate.h"
#include "common/worker_contract.h"

namespace trainyard::operator_runtime {
namespace {

constexpr char kDescription[] =
    "Runs TrainingJobs on a Kubernetes cluster: creates and repairs their pods and reports their "
    "status.";

constexpr char kFooter[] =
    "The operator finds the API server by the first of these: --kubeconfig, the variable\n"
    "KUBECONFIG, the pod's service account, ~/.kube/config. On SIGTERM it finishes the current\n"
    "work, releases the Lease and exits.\n"
    "Exit codes: 0 stopped by a signal; 64 wrong usage or configuration; 70 a bug; 75 the API\n"
    "server cannot be reached, or the leadership was lost (start the operator again).\n"
    "Example: trainyard-operator --kubeconfig ~/.kube/config --namespaces team-a,team-b";

std::string check_namespace(const std::string& name) {
  return api::is_dns_label(name) ? "" : "\"" + name + "\" is not a valid name of a namespace";
}

std::string check_lease(const std::string& name) {
  return api::is_dns_subdomain(name) ? "" : "\"" + name + "\" is not a valid name of a Lease";
}

std::string check_runtime_class(const std::string& name) {
  return api::is_dns_subdomain(name) ? ""
                                     : "\"" + name + "\" is not a valid name of a RuntimeClass";
}

std::string check_secret(const std::string& name) {
  return api::is_dns_label(name) ? ""
                                 : "\"" + name + "\" is not a valid name of a Secret (one label)";
}

/// "host:9443"; the host may be left out where `host_optional`.
bool is_host_and_port(const std::string& text, bool host_optional) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || (colon == 0 && !host_optional)) return false;
  int port = -1;
  const auto [end, error] =
      std::from_chars(text.data() + colon + 1, text.data() + text.size(), port);
  return error == std::errc() && end == text.data() + text.size() && port >= 0 && port <= 65535;
}

std::string check_bind_address(const std::string& text) {
  return is_off(text) || is_host_and_port(text, /*host_optional=*/true)
             ? ""
             : "\"" + text + "\" is not an address to listen at, such as :9443 or 127.0.0.1:9443";
}

std::string check_address(const std::string& text) {
  return is_host_and_port(text, /*host_optional=*/false) ? "" : "\"" + text + "\" is not HOST:PORT";
}

void add_connection_flags(CLI::App& app, OperatorOptions& options) {
  app.add_option("--kubeconfig", options.kubeconfig,
                 "Kubeconfig file (address of the API server, and credentials)");
  app.add_option("--context", options.context,
                 "Context of the kubeconfig; default: the current one");
  app.add_option("--namespaces", options.namespaces,
                 "Namespaces to serve, separated by commas; default: all")
      ->delimiter(',')
      ->check(check_namespace);
  app.add_option("--kube-api-qps", options.api_qps, "Maximum requests per second to the API server")
      ->check(CLI::Range(1.0, 1e6))
      ->capture_default_str();
  app.add_option("--kube-api-burst", options.api_burst,
                 "Maximum burst of requests to the API server")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
}

void add_work_flags(CLI::App& app, OperatorOptions& options) {
  app.add_flag("--leader-elect,!--no-leader-elect", options.leader_elect,
               "Work only while holding a Lease, so that only one of several operators is active");
  app.add_option("--leader-elect-namespace", options.leader_elect_namespace,
                 "Namespace of the Lease; default: the operator's own")
      ->check(check_namespace);
  app.add_option(
         "--leader-elect-resource-name", options.leader_elect_resource_name,
         "Name of the Lease; operators that serve different namespaces need different names")
      ->check(check_lease)
      ->capture_default_str();
  app.add_option("--max-concurrent-reconciles", options.workers,
                 "Maximum number of jobs reconciled at once")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  app.add_option(
      "--worker-image", options.worker_image,
      "Image of jobs that have an engine and name no image; it also provides the agent to pods "
      "with other images");
  app.add_option("--worker-image-pull-policy", options.worker_image_pull_policy,
                 "When to pull the worker images: Always, IfNotPresent or Never; default: "
                 "Always without a tag or for latest, otherwise IfNotPresent")
      ->check(CLI::IsMember({"Always", "IfNotPresent", "Never"}));
  app.add_option(
      "--worker-gpu-image", options.worker_gpu_image,
      "Image of jobs with an engine on GPUs that name no image; default: --worker-image");
  app.add_option("--worker-rollout", options.restarts_renew_image,
                 "When a running job changes to a new worker image: with the next restart that "
                 "replaces all its pods (OnRestart), or when it is resumed after a suspension "
                 "(OnResume)")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, bool>{{"OnRestart", true}, {"OnResume", false}}))
      ->option_text("OnRestart|OnResume [OnRestart]");
  app.add_option("--gpu-runtime-class", options.gpu_runtime_class,
                 "runtimeClassName of jobs with an engine on GPUs whose template names none")
      ->check(check_runtime_class);
}

void add_control_flags(CLI::App& app, OperatorOptions& options) {
  app.add_option(
         "--control-bind-address", options.control_bind_address,
         "Address at which the leader serves agents, such as \":9443\"; jobs with an engine "
         "or an agent need it; default: none")
      ->check(check_bind_address);
  app.add_option("--control-address", options.control_address,
                 "HOST:PORT at which agents reach the leader; default: "
                 "trainyard-control.<namespace>.svc and the port of --control-bind-address")
      ->check(check_address);
  app.add_option("--control-tls-secret", options.control_tls_secret,
                 "Secret with the TLS certificate, in the operator's namespace; if the Secret is "
                 "empty, the operator creates and renews the certificate")
      ->check(check_secret)
      ->capture_default_str();
  app.add_option("--control-connections-per-address", options.control_connections_per_address,
                 "Maximum number of unauthenticated connections per peer address that are read at "
                 "once; others wait")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option(
         "--pod-name", options.pod_name,
         "Name of the operator's own pod; the leader labels its pod with trainyard.dev/leader")
      ->envname("POD_NAME");
}

void add_telling_flags(CLI::App& app, OperatorOptions& options) {
  app.add_option("--metrics-bind-address", options.metrics_address, "Address of /metrics; 0: none")
      ->capture_default_str();
  app.add_option("--health-probe-bind-address", options.probe_address,
                 "Address of /healthz and /readyz; 0: none")
      ->capture_default_str();
  app.add_option("--log-format", options.log_format, "Format of the log")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, LogFormat>{{"json", LogFormat::kJson}, {"text", LogFormat::kText}}))
      ->option_text("json|text [json]");
  app.add_option("--log-level", options.log_level, "Lowest level to log")
      ->transform(
          CLI::CheckedTransformer(std::map<std::string, LogLevel>{{"debug", LogLevel::kDebug},
                                                                  {"info", LogLevel::kInfo},
                                                                  {"warning", LogLevel::kWarning},
                                                                  {"error", LogLevel::kError}}))
      ->option_text("debug|info|warning|error [info]");
}

/// A command of its own, for who has no kubectl: `helm test` in a pod of the operator's image.
const CLI::App* add_submit(CLI::App& app, SubmitOptions& options) {
  CLI::App* submit = app.add_subcommand(
      "submit", "Submits a TrainingJob, prints its phases until it ends, and deletes it");
  submit->fallthrough();  // --kubeconfig and --context are the operator's
  submit->add_option("file", options.file, "Manifest of the job in YAML or JSON")->required();
  submit->add_option("--namespace", options.ns, "Override the namespace of the manifest")
      ->check(check_namespace);
  submit
      ->add_option_function<int>(
          "--timeout", [&](int seconds) { options.timeout = std::chrono::seconds(seconds); },
          "Maximum duration of the job in seconds")
      ->check(CLI::Range(1, 86400))
      ->default_str("300");
  submit->add_flag("--replace", options.replace, "First delete an existing job with the same name");
  submit->add_flag("--keep", options.keep, "Keep the job when it ends");
  submit->footer(
      "Exit codes: 0 the job is complete; 1 the job failed; 64 wrong usage or manifest; 75 it did "
      "not\nend in time, it existed already, or the API server did not answer.");
  return submit;
}

}  // namespace

bool is_off(const std::string& address) { return address.empty() || address == "0"; }

std::variant<OperatorOptions, SubmitOptions, EndsAtOnce> read_options(
    const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
  OperatorOptions options;
  SubmitOptions submission;
  CLI::App app{kDescription, "trainyard-operator"};
  app.set_version_flag("--version", "trainyard-operator " TRAINYARD_VERSION);
  app.footer(kFooter);
  // Who adds a flag to a command line that is given to him (extraArgs of the chart) means his own.
  app.option_defaults()->take_last();
  add_connection_flags(app, options);
  add_work_flags(app, options);
  add_control_flags(app, options);
  add_telling_flags(app, options);
  const CLI::App* submit = add_submit(app, submission);
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());  // as CLI11 wants them
  try {
    app.parse(reversed);
  } catch (const CLI::ParseError& error) {
    const bool asked = error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success);
    app.exit(error, out, err);
    return EndsAtOnce{asked ? 0 : contract::kExitBadConfig};
  }
  if (!submit->parsed()) return options;
  submission.kubeconfig = options.kubeconfig;
  submission.context = options.context;
  return submission;
}

}  // namespace trainyard::operator_runtime

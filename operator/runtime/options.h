#pragma once

#include <iosfwd>
#include <string>
#include <variant>
#include <vector>

#include "common/base/error.h"
#include "common/log/log.h"
#include "operator/runtime/submit.h"

namespace trainyard::operator_runtime {

/// What the command line says; docs/reference/operator.md describes each flag.
struct OperatorOptions {
  std::string kubeconfig;
  std::string context;
  std::vector<std::string> namespaces;  ///< empty: all
  bool leader_elect = false;
  std::string leader_elect_namespace;  ///< empty: the pod's, else the context's
  std::string leader_elect_resource_name = "trainyard-operator";
  std::string metrics_address = ":8080";
  std::string probe_address = ":8081";
  double api_qps = 1000;
  int api_burst = 1000;
  int workers = 8;
  std::string worker_image;
  std::string worker_image_pull_policy;  ///< empty: Kubernetes' default
  std::string worker_gpu_image;          ///< empty: worker_image
  std::string gpu_runtime_class;         ///< empty: the cluster's default
  bool restarts_renew_image = true;      ///< --worker-rollout OnRestart
  std::string control_bind_address;      ///< off: no control stream
  std::string control_address;           ///< empty: the chart's Service in the operator's namespace
  std::string control_tls_secret = "trainyard-control-tls";
  int control_connections_per_address = 64;
  std::string pod_name;  ///< of the operator's own pod; empty: it runs in none
  LogLevel log_level = LogLevel::kInfo;
  LogFormat log_format = LogFormat::kJson;
};

/// The program is to end at once with this exit code: its help or its version was asked for, or the
/// command line is wrong. What there was to say is said.
struct EndsAtOnce {
  int exit_code = 0;
};

/// Reads the command line (without the program's name).
std::variant<OperatorOptions, SubmitOptions, EndsAtOnce> read_options(
    const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err);

/// Whether an address says that nothing is to listen: "0" (as in controller-runtime) or nothing.
bool is_off(const std::string& address);

}  // namespace trainyard::operator_runtime

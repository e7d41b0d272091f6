#pragma once

#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/error.h"
#include "common/http/status_server.h"
#include "common/log/log.h"
#include "control/reconciler.h"
#include "operator/cluster/kube_cluster.h"
#include "operator/kube/client.h"
#include "operator/kube/config.h"
#include "operator/kube/token_bucket.h"
#include "operator/kube/transport.h"
#include "operator/runtime/leader_election.h"
#include "operator/runtime/operator_metrics.h"
#include "operator/runtime/options.h"
#include "operator/stream/control_stream.h"

namespace trainyard::operator_runtime {

/// The operator as a whole: caches, workers, leadership, what it shows of itself.
class Operator {
 public:
  /// Connects nothing yet; clock and logger outlive it. Errors: kInvalidConfig, kNotFound for what
  /// names no API server; kUnavailable when a port is taken.
  static Result<std::unique_ptr<Operator>> make(OperatorOptions options, const Clock& clock,
                                                Logger& logger);
  ~Operator();
  Operator(const Operator&) = delete;
  Operator& operator=(const Operator&) = delete;

  /// Works until `stop` is requested, then ends what is begun (kGrace at most) and gives the lease
  /// up. Errors: kUnavailable when the leadership is lost; the caches' own.
  Status run(const std::stop_token& stop);

  /// Where status is served; empty where it is not.
  std::string metrics_address() const { return metrics_ ? metrics_->address() : ""; }
  std::string probe_address() const { return probes_ ? probes_->address() : ""; }

 private:
  Operator(OperatorOptions options, const Clock& clock, Logger& logger, kube::ServerConfig config,
           std::unique_ptr<kube::Transport> transport);

  /// What calls are about.
  enum class About { kJobs, kLease, kStream };
  kube::Client::Options client_options(About about);
  control::Reconciler::Options reconciler_options();
  cluster::KubeCluster::Options cluster_options();
  std::unique_ptr<stream::ControlStream> make_stream();
  std::string own_namespace() const;
  std::string control_address() const;
  Status listen();
  Status work(const std::stop_token& stop);
  void log_report(const control::ReconcileReport& report);
  void log_reconciled(const control::Reconciled& reconciled);
  std::string metrics_text(const http::ServerCounters& counters) const;
  http::Health readiness() const;

  const OperatorOptions options_;
  const Clock& clock_;
  Logger& logger_;
  const kube::ServerConfig config_;
  const std::string identity_;  ///< of this process
  std::stop_source abort_;      ///< ends calls to the API server that outlast the grace
  OperatorCounters counters_;
  OperatorMetrics metrics_page_;
  kube::TokenBucket bucket_;
  std::unique_ptr<kube::Transport> transport_;
  kube::Client client_;         ///< waits its turn, and changes nothing without the lease
  kube::Client leader_client_;  ///< of the lease: neither
  kube::Client stream_client_;  ///< of the control stream: does not wait
  LeaderElection election_;
  cluster::KubeCluster cluster_;
  std::unique_ptr<stream::ControlStream> stream_;  ///< null: --control-bind-address is not given
  control::Reconciler reconciler_;
  std::unique_ptr<http::StatusServer> metrics_;
  std::unique_ptr<http::StatusServer> probes_;
};

}  // namespace trainyard::operator_runtime

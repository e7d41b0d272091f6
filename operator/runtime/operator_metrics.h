#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "common/api/training_job.h"
#include "common/base/time.h"
#include "common/http/status_server.h"
#include "common/io/control_group.h"
#include "common/metrics/duration_histogram.h"
#include "control/front/front.h"
#include "control/reconciler.h"
#include "operator/cluster/kube_cluster.h"
#include "operator/kube/client.h"
#include "operator/stream/admitted_transport.h"

/// The series of the operator, under the names that controller-runtime and client-go gave them, so
/// that dashboards find them. docs/reference/metrics.md lists them.
namespace trainyard::operator_runtime {

/// What is counted as it happens. Thread-safe.
class OperatorCounters {
 public:
  explicit OperatorCounters(std::string api_host);

  void note(const control::ReconcileReport& report);
  void note(const kube::CallReport& report);

 private:
  friend class OperatorMetrics;
  const std::string api_host_;
  std::mutex mutex_;  ///< guards all below
  std::map<control::ReconcileReport::Result, int64_t> results_;
  metrics::DurationHistogram reconcile_time_;
  std::map<std::tuple<std::string, std::string>, int64_t> calls_;  ///< by code and method
};

/// Jobs that get series of their own: those that are not over before those that are.
inline constexpr size_t kMaxJobSeries = 1000;

/// What else one scrape looks at.
struct OperatorFacts {
  control::WorkQueueStats queue;
  cluster::CacheCounts cache;
  int workers = 0;
  bool leader = false;
  std::string election;  ///< label of the series that says who leads
  stream::AdmittedTransport::Counts streams;
  control::Front::Counts connections;
  /// Only the leader's: two that tell of the same jobs would double every sum.
  std::vector<std::shared_ptr<const api::TrainingJob>> jobs;
  Time now;
  GroupLimits memory = {};
};

/// Makes the body of /metrics.
class OperatorMetrics {
 public:
  explicit OperatorMetrics(OperatorCounters& counters) : counters_(counters) {}
  std::string text(const OperatorFacts& facts, const http::ServerCounters& server) const;

 private:
  OperatorCounters& counters_;
};

}  // namespace trainyard::operator_runtime

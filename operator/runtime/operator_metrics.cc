#include "operator/runtime/operator_metrics.h"

#include <algorithm>
#include <array>
#include <utility>

#include "common/api/enum_names.h"
#include "common/metrics/exposition.h"
#include "control/telemetry/job_metrics.h"
#include "control/telemetry/server_metrics.h"

namespace trainyard::operator_runtime {
namespace {

using control::ReconcileReport;
using metrics::Exposition;
using metrics::Family;
using metrics::Kind;

constexpr char kController[] = "trainingjob";

// Buckets of controller_runtime_reconcile_time_seconds, as controller-runtime has them.
constexpr std::array<double, 40> kReconcileBounds = {
    0.005, 0.01, 0.025, 0.05, 0.1,  0.15, 0.2,  0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6,
    0.7,   0.8,  0.9,   1.0,  1.25, 1.5,  1.75, 2.0,  2.5, 3.0,  3.5, 4.0,  4.5, 5,
    6,     7,    8,     9,    10,   15,   20,   25,   30,  40,   50,  60};

constexpr Family kReconciles{"controller_runtime_reconcile_total",
                             Kind::kCounter,
                             "Reconciles by result.",
                             {"controller", "result"}};
constexpr Family kErrors{"controller_runtime_reconcile_errors_total",
                         Kind::kCounter,
                         "Reconciles that ended in an error and are tried again.",
                         {"controller"}};
constexpr Family kTime{"controller_runtime_reconcile_time_seconds",
                       Kind::kHistogram,
                       "Length of a reconcile.",
                       {"controller"}};
constexpr Family kActive{"controller_runtime_active_workers",
                         Kind::kGauge,
                         "Reconciles that are running.",
                         {"controller"}};
constexpr Family kWorkers{"controller_runtime_max_concurrent_reconciles",
                          Kind::kGauge,
                          "Reconciles that may run at once.",
                          {"controller"}};
constexpr Family kDepth{
    "workqueue_depth", Kind::kGauge, "Jobs that wait for a worker.", {"controller", "name"}};
constexpr Family kAdds{
    "workqueue_adds_total", Kind::kCounter, "Jobs put into the queue.", {"controller", "name"}};
constexpr Family kQueueTime{"workqueue_queue_duration_seconds",
                            Kind::kHistogram,
                            "Time that a job waits for a worker.",
                            {"controller", "name"}};
constexpr Family kWorkTime{"workqueue_work_duration_seconds",
                           Kind::kHistogram,
                           "Time that a worker has a job.",
                           {"controller", "name"}};
constexpr Family kUnfinished{"workqueue_unfinished_work_seconds",
                             Kind::kGauge,
                             "Total time that the current jobs of the workers have been with them.",
                             {"controller", "name"}};
constexpr Family kLongest{"workqueue_longest_running_processor_seconds",
                          Kind::kGauge,
                          "The longest that a job has been with a worker now.",
                          {"controller", "name"}};
constexpr Family kRetries{"workqueue_retries_total",
                          Kind::kCounter,
                          "Jobs put back with back-off.",
                          {"controller", "name"}};
constexpr Family kLeader{
    "leader_election_master_status", Kind::kGauge, "1 where this process leads, else 0.", {"name"}};
constexpr Family kCalls{"rest_client_requests_total",
                        Kind::kCounter,
                        "Requests to the API server by answer.",
                        {"code", "host", "method"}};
constexpr Family kObjects{
    "trainyard_cache_objects", Kind::kGauge, "Objects that the cache holds.", {"kind"}};
constexpr Family kLists{"trainyard_cache_lists_total", Kind::kCounter, "Lists begun."};
constexpr Family kWatches{"trainyard_cache_watches_total", Kind::kCounter, "Watches opened."};
constexpr Family kJobs{
    "trainyard_jobs", Kind::kGauge, "Jobs by phase, in each namespace that has any.", {"phase"}};
constexpr Family kStreams{"trainyard_control_streams", Kind::kGauge,
                          "Control streams of agents that are open."};
constexpr Family kReviews{"trainyard_control_stream_reviews_total",
                          Kind::kCounter,
                          "Control streams let in, and refused, since this process began to lead.",
                          {"result"}};
constexpr Family kConnections{
    "trainyard_control_connections",
    Kind::kGauge,
    "Connections to the control port: admitted, read before that, and waiting unread.",
    {"state"}};
constexpr Family kUnadmittedBytes{"trainyard_control_unadmitted_bytes", Kind::kGauge,
                                  "Bytes read of connections that are not admitted."};
constexpr Family kAccepted{"trainyard_control_connections_accepted_total", Kind::kCounter,
                           "Connections that the control port has accepted."};
constexpr Family kCut{"trainyard_control_connections_cut_total", Kind::kCounter,
                      "Connections that the control port has cut: out of time, at fault, or one "
                      "too many."};

constexpr Family kMemory{
    "trainyard_operator_memory_bytes",
    Kind::kGauge,
    "Memory that the control groups of the operator allow (limit) and that it uses (used); none if "
    "they set no limit.",
    {"kind"}};

double seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

std::string_view name_of(ReconcileReport::Result result) {
  switch (result) {
    case ReconcileReport::Result::kSuccess:
      return "success";
    case ReconcileReport::Result::kError:
      return "error";
    case ReconcileReport::Result::kRequeue:
      return "requeue";
    case ReconcileReport::Result::kRequeueAfter:
      return "requeue_after";
  }
  return "?";
}

void add_queue(Exposition& out, const control::WorkQueueStats& queue) {
  out.add(kDepth, {kController, kController}, static_cast<double>(queue.depth));
  out.add(kAdds, {kController, kController}, static_cast<double>(queue.adds));
  out.add(kQueueTime, {kController, kController}, queue.queue_duration.value());
  out.add(kWorkTime, {kController, kController}, queue.work_duration.value());
  out.add(kUnfinished, {kController, kController}, seconds(queue.unfinished_work));
  out.add(kLongest, {kController, kController}, seconds(queue.longest_running));
  out.add(kRetries, {kController, kController}, static_cast<double>(queue.retries));
}

using Jobs = std::vector<std::shared_ptr<const api::TrainingJob>>;

void count_jobs(Exposition& out, const Jobs& jobs) {
  std::map<std::string, std::map<api::JobPhase, int64_t>> counted;
  for (const auto& job : jobs)
    ++counted[job->metadata.namespace_name][job->status.phase];
  out.declare(kJobs);
  for (auto& [ns, phases] : counted) {
    out.about({}, ns);
    for (const auto& entry : api::EnumTable<api::JobPhase>::kNames)
      out.add(kJobs, {entry.name}, static_cast<double>(phases[entry.value]));
  }
}

bool is_over(const api::TrainingJobStatus& status) {
  return status.phase == api::JobPhase::kComplete || status.phase == api::JobPhase::kFailed;
}

/// A job's series go when the job goes; more than kMaxJobSeries of them would be a burden to
/// whoever scrapes.
void add_jobs(Exposition& out, Jobs jobs, Time now) {
  count_jobs(out, jobs);
  std::stable_partition(jobs.begin(), jobs.end(),
                        [](const auto& job) { return !is_over(job->status); });
  if (jobs.size() > kMaxJobSeries) jobs.resize(kMaxJobSeries);
  for (const Family& family : control::job_families())
    out.declare(family);
  for (const auto& job : jobs) {
    out.about(job->metadata.name, job->metadata.namespace_name);
    control::add_job_metrics(out, job->spec, job->status, now);
  }
  out.about({}, {});
}

void add_connections(Exposition& out, const control::Front::Counts& counts) {
  const auto& now = counts.now;
  out.add(kConnections, {"admitted"}, static_cast<double>(now.admitted));
  out.add(kConnections, {"read"},
          static_cast<double>(now.connections - now.admitted - now.waiting));
  out.add(kConnections, {"waiting"}, static_cast<double>(now.waiting));
  out.add(kUnadmittedBytes, {}, static_cast<double>(now.bytes));
  out.add(kAccepted, {}, static_cast<double>(counts.accepted));
  out.add(kCut, {}, static_cast<double>(counts.cut));
}

/// A process that takes more is killed, and with it goes the control stream of every agent.
void add_memory(Exposition& out, const GroupLimits& memory) {
  out.declare(kMemory);
  if (!memory.memory_bytes || !memory.memory_room_bytes) return;
  out.add(kMemory, {"limit"}, static_cast<double>(*memory.memory_bytes));
  out.add(kMemory, {"used"}, static_cast<double>(*memory.memory_bytes - *memory.memory_room_bytes));
}

}  // namespace

OperatorCounters::OperatorCounters(std::string api_host)
    : api_host_(std::move(api_host)), reconcile_time_(kReconcileBounds) {
  using Result = ReconcileReport::Result;
  for (const Result result :
       {Result::kSuccess, Result::kError, Result::kRequeue, Result::kRequeueAfter}) {
    results_[result] = 0;
  }
}

void OperatorCounters::note(const ReconcileReport& report) {
  const std::lock_guard lock(mutex_);
  ++results_[report.result];
  reconcile_time_.observe(report.took);
}

void OperatorCounters::note(const kube::CallReport& report) {
  // client-go's word for a request without an answer.
  const std::string code = report.status == 0 ? "<error>" : std::to_string(report.status);
  const std::lock_guard lock(mutex_);
  ++calls_[{code, std::string(kube::name_of(report.method))}];
}

std::string OperatorMetrics::text(const OperatorFacts& facts,
                                  const http::ServerCounters& server) const {
  Exposition out("");
  {
    const std::lock_guard lock(counters_.mutex_);
    for (const auto& [result, count] : counters_.results_)
      out.add(kReconciles, {kController, name_of(result)}, static_cast<double>(count));
    out.add(kErrors, {kController},
            static_cast<double>(counters_.results_.at(ReconcileReport::Result::kError)));
    out.add(kTime, {kController}, counters_.reconcile_time_.value());
    out.declare(kCalls);
    for (const auto& [labels, count] : counters_.calls_) {
      out.add(kCalls, {std::get<0>(labels), counters_.api_host_, std::get<1>(labels)},
              static_cast<double>(count));
    }
  }
  out.add(kActive, {kController}, static_cast<double>(facts.queue.active));
  out.add(kWorkers, {kController}, facts.workers);
  add_queue(out, facts.queue);
  out.add(kLeader, {facts.election}, facts.leader ? 1 : 0);
  out.add(kObjects, {"TrainingJob"}, static_cast<double>(facts.cache.jobs));
  out.add(kObjects, {"Pod"}, static_cast<double>(facts.cache.pods));
  out.add(kObjects, {"Node"}, static_cast<double>(facts.cache.nodes));
  out.add(kLists, {}, static_cast<double>(facts.cache.lists));
  out.add(kWatches, {}, static_cast<double>(facts.cache.watches));
  out.add(kStreams, {}, static_cast<double>(facts.streams.open));
  out.add(kReviews, {"admitted"}, static_cast<double>(facts.streams.admitted));
  out.add(kReviews, {"refused"}, static_cast<double>(facts.streams.refused));
  add_connections(out, facts.connections);
  add_memory(out, facts.memory);
  add_jobs(out, facts.jobs, facts.now);
  control::add_server_metrics(out, server);
  return out.text();
}

}  // namespace trainyard::operator_runtime

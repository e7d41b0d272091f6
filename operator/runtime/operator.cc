#include "operator/runtime/operator.h"

#include <array>
#include <random>
#include <thread>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "common/api/enum_names.h"
#include "common/base/wait.h"
#include "common/io/control_group.h"
#include "operator/runtime/connection.h"
#include "operator/runtime/worker_pool.h"

namespace trainyard::operator_runtime {
namespace {

/// By which our series are told from those of other programs, whatever the Lease is called.
constexpr char kElection[] = "trainyard-operator";
/// The Service that selects the leader's pod.
constexpr char kControlService[] = "trainyard-control";
/// What is begun may take so long once the operator is told to stop; Kubernetes kills it after 30
/// s.
constexpr std::chrono::seconds kGrace{20};
/// Calls about the lease: less than half of the renew deadline, so that there is a second try.
constexpr std::chrono::seconds kLeaseCall{4};
/// A cache that has no list by now is a server that does not answer.
constexpr std::chrono::minutes kSyncLimit{10};
/// A wait without end, in parts.
constexpr std::chrono::hours kLongWait{1};
/// Wakes of one job are gathered for so long.
constexpr std::chrono::milliseconds kGather{100};
/// How often the status of a job whose pods come up one by one is written.
constexpr std::chrono::seconds kCountsPeriod{1};
/// The metrics page names every job: however many ask for it, it is made no more often than this.
constexpr std::chrono::seconds kMetricsPeriod{1};

/// Uniform in [0, 1); thread-safe.
double random_fraction() {
  thread_local std::mt19937_64 engine(std::random_device{}());
  return std::uniform_real_distribution<double>(0, 1)(engine);
}

/// "<host>_<random>": unique also where a pod's container starts again.
std::string make_identity() {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '\0';
  std::random_device random;
  return fmt::format("{}_{:08x}{:08x}", host.data(), random(), random());
}

/// "host" of "host:9443", "::1" of "[::1]:9443".
std::string without_port(const std::string& address) {
  const std::string host = address.substr(0, address.rfind(':'));
  return host.starts_with('[') && host.ends_with(']') ? host.substr(1, host.size() - 2) : host;
}

/// "10.0.0.1:443" of "https://10.0.0.1:443/path".
std::string host_of(const std::string& server) {
  const size_t scheme = server.find("://");
  const size_t from = scheme == std::string::npos ? 0 : scheme + 3;
  return server.substr(from, server.find('/', from) - from);
}

std::string joined(const std::vector<std::string>& names) {
  std::string all;
  for (const std::string& name : names)
    all += (all.empty() ? "" : ",") + name;
  return all.empty() ? "all" : all;
}

LeaderElection::Options election_options(const OperatorOptions& options,
                                         const kube::ServerConfig& config,
                                         const kube::Client& client, const Clock& clock,
                                         Logger& logger, const std::string& identity) {
  LeaderElection::Options made;
  made.client = &client;
  made.clock = &clock;
  made.logger = &logger;
  made.ns = options.leader_elect_namespace.empty() ? config.ns : options.leader_elect_namespace;
  made.name = options.leader_elect_resource_name;
  made.identity = identity;
  made.random = random_fraction;
  return made;
}

}  // namespace

Result<std::unique_ptr<Operator>> Operator::make(OperatorOptions options, const Clock& clock,
                                                 Logger& logger) {
  TRAINYARD_ASSIGN(Connection server, find_server(options.kubeconfig, options.context, clock));
  std::unique_ptr<Operator> made(new Operator(
      std::move(options), clock, logger, std::move(server.config), std::move(server.transport)));
  TRAINYARD_TRY(made->listen());
  return made;
}

Operator::Operator(OperatorOptions options, const Clock& clock, Logger& logger,
                   kube::ServerConfig config, std::unique_ptr<kube::Transport> transport)
    : options_(std::move(options)),
      clock_(clock),
      logger_(logger),
      config_(std::move(config)),
      identity_(make_identity()),
      counters_(host_of(config_.server)),
      metrics_page_(counters_),
      bucket_(options_.api_qps, options_.api_burst),
      transport_(std::move(transport)),
      client_(*transport_, clock_, client_options(About::kJobs)),
      leader_client_(*transport_, clock_, client_options(About::kLease)),
      stream_client_(*transport_, clock_, client_options(About::kStream)),
      election_(election_options(options_, config_, leader_client_, clock_, logger_, identity_)),
      cluster_(cluster_options()),
      stream_(make_stream()),
      reconciler_(reconciler_options()) {}

Operator::~Operator() {
  probes_.reset();  // what they show is on its way out
  metrics_.reset();
  cluster_.set_listener({});
  abort_.request_stop();
  stream_.reset();  // it wakes the reconciler
}

kube::Client::Options Operator::client_options(About about) {
  kube::Client::Options made;
  if (about == About::kJobs) {
    made.limiter = &bucket_;
  } else {
    made.timeout = made.write_timeout = kLeaseCall;
  }
  if (options_.leader_elect && about != About::kLease) {
    made.may_write = [this] { return election_.holds(); };
  }
  made.stop = abort_.get_token();
  made.on_call = [this](const kube::CallReport& report) { counters_.note(report); };
  return made;
}

std::string Operator::own_namespace() const {
  return options_.leader_elect_namespace.empty() ? config_.ns : options_.leader_elect_namespace;
}

std::string Operator::control_address() const {
  const std::string& bind = options_.control_bind_address;
  if (is_off(bind) || !options_.control_address.empty()) return options_.control_address;
  return fmt::format("{}.{}.svc{}", kControlService, own_namespace(), bind.substr(bind.rfind(':')));
}

cluster::KubeCluster::Options Operator::cluster_options() {
  cluster::KubeCluster::Options made;
  made.client = &client_;
  made.clock = &clock_;
  made.logger = &logger_;
  made.namespaces = options_.namespaces;
  made.pod_defaults.worker_image = options_.worker_image;
  made.pod_defaults.worker_image_pull_policy = options_.worker_image_pull_policy;
  made.pod_defaults.worker_gpu_image = options_.worker_gpu_image;
  made.pod_defaults.gpu_runtime_class = options_.gpu_runtime_class;
  made.restarts_renew_image = options_.restarts_renew_image;
  if (!is_off(options_.control_bind_address)) made.pod_defaults.control_address = control_address();
  made.control_authorities = [this] { return stream_ ? stream_->authorities() : std::string(); };
  made.instance = identity_;
  made.random = random_fraction;
  return made;
}

std::unique_ptr<stream::ControlStream> Operator::make_stream() {
  const std::string& bind = options_.control_bind_address;
  if (is_off(bind)) return nullptr;
  stream::ControlStream::Options made;
  made.client = &stream_client_;
  made.clock = &clock_;
  made.logger = &logger_;
  made.bind_address = bind;
  made.bounds.read_per_address = static_cast<size_t>(options_.control_connections_per_address);
  made.memory_bytes = group_limits().memory_bytes.value_or(0) / 2;
  made.hosts = {without_port(control_address())};
  made.secret = {own_namespace(), options_.control_tls_secret};
  made.own_pod = {own_namespace(), options_.pod_name};
  made.job_of = [this](const stream::TokenOwner& pod) {
    return cluster_.job_of({pod.ns, pod.pod_name, pod.pod_uid});
  };
  made.wake = [this](const control::JobKey& key) { reconciler_.wake(key); };
  return std::make_unique<stream::ControlStream>(std::move(made));
}

control::Reconciler::Options Operator::reconciler_options() {
  control::Reconciler::Options made;
  made.cluster = &cluster_;
  made.facts = stream_.get();
  made.membership = stream_.get();
  made.has_agents = render::runs_agent;
  made.clock = &clock_;
  made.on_reconciled = [this](const control::Reconciled& done) { log_reconciled(done); };
  made.on_report = [this](const control::ReconcileReport& report) {
    counters_.note(report);
    log_report(report);
  };
  made.gather = kGather;
  made.counts_period = kCountsPeriod;
  return made;
}

// ---- What it shows of itself -------------------------------------------------------------------

Status Operator::listen() {
  const auto metrics = [this](const http::ServerCounters& counters) {
    return metrics_text(counters);
  };
  const auto pages = http::status_pages(
      metrics, [this] { return readiness(); }, kMetricsPeriod);
  const auto start = [&](const char* flag, const std::string& address,
                         std::unique_ptr<http::StatusServer>& server) -> Status {
    auto started = http::StatusServer::start({.address = address, .pages = pages});
    if (!started) return started.error().with_context(flag);
    server = *std::move(started);
    logger_.info("listening", {{"flag", flag}, {"address", server->address()}});
    return {};
  };
  if (!is_off(options_.metrics_address)) {
    TRAINYARD_TRY(start("--metrics-bind-address", options_.metrics_address, metrics_));
  }
  // One port may serve both.
  const bool shared = metrics_ && options_.probe_address == options_.metrics_address;
  if (is_off(options_.probe_address) || shared) return {};
  return start("--health-probe-bind-address", options_.probe_address, probes_);
}

std::string Operator::metrics_text(const http::ServerCounters& counters) const {
  OperatorFacts facts{reconciler_.queue_stats(), cluster_.counts(), options_.workers,
                      election_.is_leader(), kElection};
  if (!options_.leader_elect) facts.leader = true;
  if (facts.leader) facts.jobs = cluster_.cached_jobs();
  if (stream_) {
    facts.streams = stream_->counts();
    facts.connections = stream_->connections();
  }
  facts.memory = group_limits();
  facts.now = clock_.now();
  return metrics_page_.text(facts, counters);
}

http::Health Operator::readiness() const {
  if (!cluster_.synced()) return {false, "the caches are not filled yet"};
  return {true, "ok"};
}

void Operator::log_report(const control::ReconcileReport& report) {
  const std::string id =
      fmt::format("{}-{}", identity_.substr(identity_.rfind('_') + 1), report.id);
  const std::string& ns = report.key.namespace_name;
  const double took = std::chrono::duration<double>(report.took).count();
  if (!report.error) {
    logger_.debug(
        "reconciled",
        {{"namespace", ns}, {"job", report.key.name}, {"reconcile_id", id}, {"seconds", took}});
    return;
  }
  // A lost race is tried again and no news.
  const bool race = report.error->code == ErrorCode::kConflict;
  logger_.log(race ? LogLevel::kInfo : LogLevel::kError, "reconcile failed",
              {{"namespace", ns},
               {"job", report.key.name},
               {"reconcile_id", id},
               {"seconds", took},
               {"error", report.error->message}});
}

void Operator::log_reconciled(const control::Reconciled& done) {
  const api::TrainingJobStatus& before = done.observed.status;
  const api::TrainingJobStatus& after = done.status;
  if (before.phase == after.phase && before.membership == after.membership) return;
  logger_.info("job changed", {{"namespace", done.observed.key.namespace_name},
                               {"job", done.observed.key.name},
                               {"uid", done.observed.metadata.uid},
                               {"phase", api::name_of(after.phase)},
                               {"generation", after.membership.generation},
                               {"nodes_target", after.nodes.target},
                               {"restarts", after.restarts.total}});
}

// ---- The work ----------------------------------------------------------------------------------

Status Operator::run(const std::stop_token& stop) {
  logger_.info("starting", {{"version", TRAINYARD_VERSION},
                            {"identity", identity_},
                            {"server", host_of(config_.server)},
                            {"namespaces", joined(options_.namespaces)}});
  cluster_.start();
  Status ended = cluster_.wait_synced(kSyncLimit, stop);
  if (ended) {
    const cluster::CacheCounts counts = cluster_.counts();
    logger_.info("caches are filled",
                 {{"jobs", counts.jobs}, {"pods", counts.pods}, {"nodes", counts.nodes}});
    ended = work(stop);
  }
  cluster_.set_listener({});
  abort_.request_stop();
  // Who is asked to end has no more to answer for than that it did.
  return stop.stop_requested() ? Status() : ended;
}

/// Works, where a leader is elected while this process is the leader, until the stop.
Status Operator::work(const std::stop_token& stop) {
  WorkerPool workers;
  std::stop_source end_lease;
  const auto begin = [&] {
    if (stream_) stream_->start(election_.transitions());
    // Not before: in the queue of one who waits to lead the names of all jobs that ever were would
    // gather.
    cluster_.set_listener([this](const control::JobKey& key) { reconciler_.wake(key); });
    for (const control::JobKey& key : cluster_.jobs())
      reconciler_.wake(key);
    workers.start(options_.workers,
                  [this](const std::stop_token& token) { reconciler_.run(token); });
    logger_.info("working", {{"workers", options_.workers}});
  };
  // The lease is kept until what is begun has ended.
  const std::jthread stopper([&](const std::stop_token& over) {
    std::stop_source either;
    const std::stop_callback by_caller(stop, [&] { either.request_stop(); });
    const std::stop_callback by_loss(over, [&] { either.request_stop(); });
    while (!wait_for_stop(either.get_token(), kLongWait))
      continue;
    workers.end();
    if (!workers.wait(kGrace)) {
      logger_.warning("unfinished work has not ended in time and is aborted",
                      {{"seconds", static_cast<int64_t>(kGrace.count())}});
      abort_.request_stop();
    }
    end_lease.request_stop();
  });
  if (!options_.leader_elect) {
    begin();
    while (!wait_for_stop(end_lease.get_token(), kSyncLimit))
      continue;
    return {};
  }
  const LeaderElection::End end = election_.run(end_lease.get_token(), begin);
  if (end == LeaderElection::End::kLost) {
    // Another may lead already: nothing more of ours is to reach the server.
    abort_.request_stop();
    return Error{ErrorCode::kUnavailable, "the leadership is lost; start the operator again"};
  }
  election_.release();
  return {};
}

}  // namespace trainyard::operator_runtime

#include "tests/support/sim/replica.h"

#include <algorithm>
#include <utility>

namespace trainyard::sim {
namespace {

/// As the program gathers wakes of one job, and writes counts.
constexpr std::chrono::milliseconds kGather{100};
constexpr std::chrono::seconds kCountsPeriod{1};

}  // namespace

void SteppedRunner::start(cache::Reflector& reflector) { driven_.push_back({&reflector, {}}); }

void SteppedRunner::stop(cache::Reflector& reflector) {
  std::erase_if(driven_, [&](const Driven& driven) { return driven.reflector == &reflector; });
}

MonoTime SteppedRunner::due_of(const Driven& driven) const {
  if (driven.reflector->report().state != cache::ReflectorState::kWatching) {
    return driven.not_before;
  }
  WatchStream* stream = transport_.stream(std::string(driven.reflector->resource().plural));
  const MonoTime due = stream->is_ready() ? clock_.mono() : stream->next_due();
  return std::max(driven.not_before, due);
}

bool SteppedRunner::step(size_t first) {
  for (size_t i = 0; i < driven_.size(); ++i) {
    Driven& driven = driven_[(first + i) % driven_.size()];
    if (due_of(driven) > clock_.mono()) continue;
    const Duration pause = driven.reflector->step({});
    driven.not_before = clock_.mono() + pause;
    return true;
  }
  return false;
}

std::optional<MonoTime> SteppedRunner::next_due() const {
  std::optional<MonoTime> first;
  for (const Driven& driven : driven_)
    first = std::min(first.value_or(MonoTime::max()), due_of(driven));
  return first;
}

Replica::Replica(ApiServer& api, WatchServer& server, const Clock& clock, Options options)
    : name_(std::move(options.name)),
      random_(options.seed),
      transport_(api, server, clock, std::string(kUser) + "/" + name_, std::move(options.hooks)),
      client_(transport_, clock, {}),
      runner_(transport_, clock),
      cluster_([&] {
        cluster::KubeCluster::Options made;
        made.client = &client_;
        made.clock = &clock;
        made.logger = options.logger != nullptr ? options.logger : nowhere_.get();
        made.instance = name_;
        made.random = [this] { return std::uniform_real_distribution<double>(0, 1)(random_); };
        made.runner = &runner_;
        made.calls_at_once = 1;
        made.pod_defaults = {"worker:1", "operator:9500", ""};
        made.control_authorities = [] { return std::string("authorities"); };
        return made;
      }()),
      reconciler_([&] {
        control::Reconciler::Options made;
        made.cluster = &cluster_;
        made.clock = &clock;
        made.limits = options.limits;
        made.gather = kGather;
        made.counts_period = kCountsPeriod;
        Logger* const logger = options.logger;
        if (logger != nullptr) {
          made.on_error = [logger](const control::JobKey& key, const Error& error) {
            logger->info("reconcile failed", {{"job", key.name}, {"error", error.message}});
          };
        }
        return made;
      }()) {
  cluster_.set_listener([this](const control::JobKey& key) { reconciler_.wake(key); });
  cluster_.start();
}

Replica::~Replica() { cluster_.set_listener({}); }

bool Replica::reconcile_next() { return cluster_.synced() && reconciler_.run_next(); }

std::optional<MonoTime> Replica::next_due(bool leads) const {
  std::optional<MonoTime> due = runner_.next_due();
  if (!leads || !cluster_.synced()) return due;
  const std::optional<MonoTime> work = reconciler_.next_due();
  if (work) due = std::min(due.value_or(MonoTime::max()), *work);
  return due;
}

}  // namespace trainyard::sim

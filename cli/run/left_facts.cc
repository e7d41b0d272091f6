#include "cli/run/left_facts.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <sys/stat.h>
#include <thread>
#include <utility>
#include <vector>

#include "cli/run/result_file.h"
#include "control/local/job_store.h"
#include "control/plan.h"
#include "control/status_edit.h"
#include "worker/checkpoint/reader.h"

namespace trainyard::cli {
namespace {

/// How long killed pods are waited for.
constexpr std::chrono::seconds kEndPatience{5};
constexpr std::chrono::milliseconds kEndPoll{10};

bool is_over(const api::TrainingJobStatus& status) {
  return control::is_true(status, api::ConditionType::kComplete) ||
         control::is_true(status, api::ConditionType::kFailed);
}

bool is_member(const control::ObservedPod& pod, const api::Membership& membership) {
  return pod.member && !pod.terminating && pod.node_index >= 0 &&
         pod.created_generation >= membership.pods_since;
}

/// Whether every index of the present generation has a pod that ended well.
bool have_all_ended_well(const control::Observed& observed) {
  const api::TrainingJobStatus& status = observed.status;
  if (status.membership.generation == 0 || is_over(status)) return false;
  std::set<int> indexes;
  for (const control::ObservedPod& pod : observed.pods) {
    if (!is_member(pod, status.membership)) continue;
    if (!pod.exit || pod.exit->exit_code != 0) return false;
    indexes.insert(pod.node_index);
  }
  return !indexes.empty() && static_cast<int64_t>(indexes.size()) >= status.nodes.target;
}

/// The newest good checkpoint, and when it was committed.
std::optional<control::CheckpointFact> newest_checkpoint(const std::filesystem::path& folder) {
  checkpoint::PosixFileSystem files;
  const auto newest = checkpoint::open_newest_good(files, folder, std::nullopt,
                                                   checkpoint::Verify::kManifest, nullptr);
  if (!newest) return std::nullopt;
  control::CheckpointFact fact;
  fact.step = (*newest)->manifest().step;
  fact.generation = (*newest)->manifest().generation;
  struct stat info {};
  if (::stat((*newest)->directory().c_str(), &info) == 0) {
    fact.at = Time(std::chrono::seconds(info.st_mtim.tv_sec) +
                   std::chrono::nanoseconds(info.st_mtim.tv_nsec));
  }
  return fact;
}

void add_left(control::StreamFacts& facts, const control::Observed& observed,
              const control::local::LocalCluster& cluster) {
  const int64_t generation = observed.status.membership.generation;
  const bool told = facts.result.has_value() || facts.generation > generation;
  if (told || !observed.spec.engine || !have_all_ended_well(observed)) return;
  facts.hosted = true;
  facts.same_machine = true;
  facts.generation = generation;
  facts.rank_table_ready = true;
  for (const control::ObservedPod& pod : observed.pods) {
    if (is_member(pod, observed.status.membership) && !facts.result)
      facts.result = read_pod_result(cluster.run_dir(), pod.name);
  }
  if (auto newest = newest_checkpoint(cluster.checkpoint_dir())) facts.checkpoint = newest;
}

/// How these pods end the job, and what there is to tell of it.
struct End {
  api::TrainingJobStatus status;
  std::vector<control::Event> events;
};

/// nullopt where the job goes on.
std::optional<End> end_of(control::Observed observed, Time now) {
  constexpr int kPlansMax = 4;  // the decision, then the end
  const int64_t generation = observed.status.membership.generation;
  End end;
  for (int plans = 0; plans < kPlansMax; ++plans) {
    control::Plan plan = control::plan(observed, now);
    std::optional<api::TrainingJobStatus>& next = plan.intent ? plan.intent : plan.outcome;
    if (!next || next->membership.generation != generation) return std::nullopt;
    observed.status = *std::move(next);
    end.events.insert(end.events.end(), plan.events.begin(), plan.events.end());
    if (!is_over(observed.status)) continue;
    end.status = std::move(observed.status);
    return end;
  }
  return std::nullopt;
}

}  // namespace

control::StreamFacts LeftFacts::facts(const std::string& job_uid) const {
  control::StreamFacts facts = agents_.facts(job_uid);
  if (facts.result) return facts;
  if (const auto observed = cluster_.observe(cluster_.key())) add_left(facts, *observed, cluster_);
  return facts;
}

Status settle_ended_run(control::local::LocalClusterOptions wanted) {
  const auto stored = control::local::stored_job(wanted.run_dir);
  if (!stored || stored->metadata.name != wanted.job.metadata.name) return {};
  const bool again = wanted.after_failure == control::local::AfterFailure::kTryAgain;
  if (is_over(stored->status) || (stored->spec == wanted.job.spec && !again)) return {};
  const Time now = wanted.clock->now();
  wanted.job = *stored;
  wanted.after_failure = control::local::AfterFailure::kStay;
  TRAINYARD_ASSIGN(const auto cluster, control::local::LocalCluster::open(std::move(wanted)));
  TRAINYARD_ASSIGN(control::Observed observed, cluster->observe(cluster->key()));
  const auto has_ended = [](const control::ObservedPod& pod) { return pod.exit.has_value(); };
  const bool decided = control::is_true(observed.status, api::ConditionType::kFailureTarget) ||
                       control::is_true(observed.status, api::ConditionType::kSuccessCriteriaMet);
  if (decided) {
    // What is left of its pods is on its way out.
    cluster->kill_all();
    const auto deadline = std::chrono::steady_clock::now() + kEndPatience;
    while (!std::ranges::all_of(observed.pods, has_ended) &&
           std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(kEndPoll);
      TRAINYARD_ASSIGN(observed, cluster->observe(cluster->key()));
    }
  } else if (observed.pods.empty()) {
    return {};
  }
  if (!std::ranges::all_of(observed.pods, has_ended)) return {};
  add_left(observed.facts, observed, *cluster);
  const std::string version = observed.metadata.resource_version;
  const std::optional<End> end = end_of(std::move(observed), now);
  if (!end) return {};
  const auto written =
      cluster->put_status(cluster->key(), cluster->job_uid(), end->status, version);
  if (!written) return written.error();
  // An event that cannot be told changes nothing of what is written.
  for (const control::Event& event : end->events)
    static_cast<void>(cluster->emit_event(cluster->key(), event));
  return {};
}

}  // namespace trainyard::cli

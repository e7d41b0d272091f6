#include "tests/support/memory_cluster.h"

#include <algorithm>
#include <utility>

#include "control/membership.h"

namespace trainyard::testing_support {
namespace {

using control::NodeState;
using control::ObservedPod;
using control::PodPhase;

/// Views older than this many changes are never given out.
constexpr size_t kHistory = 64;

Error cut_off() { return {ErrorCode::kUnavailable, "the client has crashed"}; }

}  // namespace

api::TrainingJob make_job(int64_t nodes) {
  api::TrainingJob job;
  job.metadata.name = "job";
  job.metadata.namespace_name = "default";
  job.metadata.uid = "job-uid-1";
  job.metadata.generation = 1;
  job.spec.num_nodes = nodes;
  return job;
}

MemoryCluster::MemoryCluster(const Clock& clock, api::TrainingJob job)
    : clock_(clock), job_(std::move(job)) {
  if (!job_.metadata.creation_timestamp) job_.metadata.creation_timestamp = clock.now();
  history_.push_back(snapshot());
}

control::JobKey MemoryCluster::key() const {
  return {job_.metadata.namespace_name, job_.metadata.name};
}

control::Observed MemoryCluster::snapshot() const {
  control::Observed observed;
  observed.key = key();
  observed.metadata = job_.metadata;
  observed.metadata.resource_version = "v" + std::to_string(version_);
  observed.spec = job_.spec;
  observed.status = job_.status;
  observed.worker_image = worker_image_;
  observed.restarts_renew_image = restarts_renew_image_;
  for (const auto& [name, pod] : pods_) {
    if (pod.owner_uid == job_.metadata.uid) observed.pods.push_back(pod.seen);
  }
  return observed;
}

control::Observed MemoryCluster::truth() const {
  const std::lock_guard lock(mutex_);
  return snapshot();
}

bool MemoryCluster::job_exists() const {
  const std::lock_guard lock(mutex_);
  return exists_;
}

void MemoryCluster::changed() {
  ++changes_;
  history_.push_back(snapshot());
  if (history_.size() > kHistory) history_.pop_front();
}

void MemoryCluster::edit_spec(const std::function<void(api::TrainingJobSpec&)>& edit) {
  const Change change(*this);
  edit(job_.spec);
  ++job_.metadata.generation;
  ++version_;
  changed();
}

void MemoryCluster::edit_status(const std::function<void(api::TrainingJobStatus&)>& edit) {
  const Change change(*this);
  edit(job_.status);
  ++version_;
  changed();
}

void MemoryCluster::step() {
  const Change change(*this);
  const auto holds_room = [](const auto& entry) {
    const ObservedPod& pod = entry.second.seen;
    return control::is_alive(pod) && pod.node_state != NodeState::kUnplaced;
  };
  int64_t placed = std::count_if(pods_.begin(), pods_.end(), holds_room);
  for (auto it = pods_.begin(); it != pods_.end();) {
    Pod& pod = it->second;
    const bool in_grace =
        control::is_alive(pod.seen) && pod.seen.ends_at && *pod.seen.ends_at > clock_.now();
    if (pod.seen.terminating && !pod.node_lost && !in_grace) {
      it = pods_.erase(it);
      continue;
    }
    const bool pending = pod.seen.phase == PodPhase::kPending && !pod.seen.terminating;
    if (pending && pod.seen.node_state == NodeState::kUnplaced) {
      if (placed < capacity_) {
        ++placed;
        pod.seen.node_state = NodeState::kReady;
        pod.seen.placed_at = clock_.now();
        pod.seen.node = pod.seen.spare ? "node-s" + std::to_string(*pod.seen.spare)
                                       : "node-" + std::to_string(pod.seen.node_index);
      }
    } else if (pending && !pod.node_lost && !pod.seen.waiting) {
      pod.seen.phase = PodPhase::kRunning;
      pod.seen.ready = true;
      pod.seen.started_at = clock_.now();
    }
    ++it;
  }
  changed();
}

void MemoryCluster::set_room(bool room) {
  set_capacity(room ? std::numeric_limits<int64_t>::max() : 0);
}

void MemoryCluster::take_whole_grace() {
  const std::lock_guard lock(mutex_);
  takes_whole_grace_ = true;
}

void MemoryCluster::drop_from_statuses(std::function<void(api::TrainingJobStatus&)> drop) {
  const std::lock_guard lock(mutex_);
  drop_ = std::move(drop);
}

void MemoryCluster::set_worker_image(const std::string& image, bool restarts_renew) {
  const Change change(*this);
  worker_image_ = image;
  restarts_renew_image_ = restarts_renew;
  changed();
}

void MemoryCluster::set_capacity(int64_t pods) {
  const std::lock_guard lock(mutex_);
  capacity_ = pods;
}

void MemoryCluster::finish_pod(const std::string& name, const control::ContainerExit& exit) {
  finish_pods({name}, exit);
}

void MemoryCluster::finish_pods(const std::vector<std::string>& names,
                                const control::ContainerExit& exit) {
  const Change change(*this);
  for (const std::string& name : names) {
    ObservedPod& pod = pods_.at(name).seen;
    pod.phase = exit.exit_code == 0 ? PodPhase::kSucceeded : PodPhase::kFailed;
    pod.ready = false;
    pod.exit = exit;
    if (!pod.exit->finished_at) pod.exit->finished_at = clock_.now();
  }
  changed();
}

void MemoryCluster::finish_all() {
  const Change change(*this);
  for (auto& [name, pod] : pods_) {
    if (pod.seen.phase != PodPhase::kRunning) continue;
    pod.seen.phase = PodPhase::kSucceeded;
    pod.seen.ready = false;
    pod.seen.exit = control::ContainerExit{};
    pod.seen.exit->finished_at = clock_.now();
  }
  changed();
}

void MemoryCluster::remove_pod(const std::string& name) {
  const Change change(*this);
  pods_.erase(name);
  changed();
}

void MemoryCluster::lose_node(const std::string& pod_name) {
  const Change change(*this);
  Pod& pod = pods_.at(pod_name);
  pod.node_lost = true;
  pod.seen.node_state = NodeState::kNotReady;
  pod.seen.ready = false;
  changed();
}

void MemoryCluster::delete_from_outside(const std::string& pod_name, Duration grace) {
  const Change change(*this);
  ObservedPod& pod = pods_.at(pod_name).seen;
  pod.terminating = true;
  if (grace > Duration::zero()) pod.ends_at = clock_.now() + grace;
  changed();
}

void MemoryCluster::set_waiting(const std::string& pod_name,
                                std::optional<control::WaitingContainer> waiting) {
  const Change change(*this);
  pods_.at(pod_name).seen.waiting = std::move(waiting);
  changed();
}

void MemoryCluster::set_pod_condition(const std::string& pod_name,
                                      control::PodCondition condition) {
  const Change change(*this);
  pods_.at(pod_name).seen.conditions.push_back(std::move(condition));
  changed();
}

void MemoryCluster::add_foreign_pod(const std::string& name) {
  const std::lock_guard lock(mutex_);
  Pod pod;
  pod.seen.name = name;
  pod.seen.uid = "foreign-pod-" + std::to_string(next_uid_++);
  pod.owner_uid = "somebody-else";
  pods_[name] = std::move(pod);
}

void MemoryCluster::set_lingering(const std::string& name) {
  const Change change(*this);
  pods_.at(name).seen.lingers = true;
  changed();
}

void MemoryCluster::refuse_tried_pods(std::optional<control::Refusal> refusal) {
  const std::lock_guard lock(mutex_);
  try_refusal_ = std::move(refusal);
}

void MemoryCluster::refuse_created_pods(std::optional<control::Refusal> refusal) {
  const std::lock_guard lock(mutex_);
  create_refusal_ = std::move(refusal);
}

void MemoryCluster::set_quota(int64_t pods) {
  const std::lock_guard lock(mutex_);
  quota_ = pods;
}

int64_t MemoryCluster::tries_count() const {
  const std::lock_guard lock(mutex_);
  return tries_;
}

std::vector<int64_t> MemoryCluster::companions_kept() const {
  const std::lock_guard lock(mutex_);
  return companions_;
}

void MemoryCluster::set_lag(int64_t changes) {
  const std::lock_guard lock(mutex_);
  lag_ = changes;
}

void MemoryCluster::crash_at(int64_t index, CrashPoint point) {
  const std::lock_guard lock(mutex_);
  crash_index_ = writes_done_ + index;
  crash_point_ = point;
}

bool MemoryCluster::crashed() const {
  const std::lock_guard lock(mutex_);
  return crashed_;
}

void MemoryCluster::reconnect() {
  const std::lock_guard lock(mutex_);
  crashed_ = false;
  crash_index_ = -1;
  shown_ = changes_;
}

int64_t MemoryCluster::unannounced() const {
  const std::lock_guard lock(mutex_);
  return unannounced_;
}

int64_t MemoryCluster::writes_count() const {
  const std::lock_guard lock(mutex_);
  return writes_done_;
}

std::vector<MemoryCluster::Write> MemoryCluster::writes() const {
  const std::lock_guard lock(mutex_);
  return log_;
}

std::vector<api::TrainingJobStatus> MemoryCluster::status_history() const {
  const std::lock_guard lock(mutex_);
  return statuses_;
}

template <class Body>
auto MemoryCluster::as_write(Body&& body) -> decltype(body()) {
  const Change change(*this);
  if (crashed_) return cut_off();
  const bool due = writes_done_ == crash_index_;
  ++writes_done_;
  if (due) {
    crashed_ = true;
    if (crash_point_ == CrashPoint::kAfter) static_cast<void>(body());
    return cut_off();
  }
  return body();
}

Result<control::Observed> MemoryCluster::observe(const control::JobKey& job) {
  const std::lock_guard lock(mutex_);
  if (crashed_) return cut_off();
  if (!exists_ || job != key()) {
    return Error{ErrorCode::kNotFound, "no TrainingJob " + job.namespace_name + "/" + job.name};
  }
  const int64_t oldest = changes_ - static_cast<int64_t>(history_.size()) + 1;
  shown_ = std::max({shown_, changes_ - lag_, oldest});
  return history_[static_cast<size_t>(shown_ - oldest)];
}

Result<std::vector<control::ObservedPod>> MemoryCluster::list_pods(
    const control::Observed& /*observed*/) {
  const std::lock_guard lock(mutex_);
  if (crashed_) return cut_off();
  return snapshot().pods;
}

Result<std::string> MemoryCluster::put_status(const control::JobKey& job, const std::string& uid,
                                              const api::TrainingJobStatus& status,
                                              const std::string& resource_version) {
  return as_write([&]() -> Result<std::string> {
    if (!exists_ || job != key()) return Error{ErrorCode::kNotFound, "no TrainingJob " + job.name};
    const std::string version = "v" + std::to_string(version_);
    if (uid != job_.metadata.uid || resource_version != version) {
      return Error{ErrorCode::kConflict, "TrainingJob " + job.name + " is at " + version +
                                             ", the write wanted " + resource_version};
    }
    job_.status = status;
    if (drop_) drop_(job_.status);
    statuses_.push_back(status);
    ++version_;
    log_.push_back({Write::Kind::kStatus, job.name});
    changed();
    return "v" + std::to_string(version_);
  });
}

Result<std::optional<control::Refusal>> MemoryCluster::try_pod(const control::PodSpec& /*spec*/) {
  const std::lock_guard lock(mutex_);
  if (crashed_) return cut_off();
  ++tries_;
  return try_refusal_;
}

Result<std::optional<control::Refusal>> MemoryCluster::keep_companions(
    const control::Observed& /*observed*/, const api::TrainingJobStatus& status) {
  const std::lock_guard lock(mutex_);
  if (crashed_) return cut_off();
  const int64_t generation = status.membership.generation;
  if (companions_.empty() || companions_.back() != generation) companions_.push_back(generation);
  return std::optional<control::Refusal>();
}

Result<control::CreateReply> MemoryCluster::create_pod(const control::PodSpec& spec) {
  return as_write([&]() -> Result<control::CreateReply> {
    using Outcome = control::CreateReply::Outcome;
    if (create_refusal_) return control::CreateReply{Outcome::kRefused, {}, {}, create_refusal_};
    if (const auto found = pods_.find(spec.name); found != pods_.end()) {
      const Pod& pod = found->second;
      const bool ours = pod.owner_uid == spec.job_uid && !pod.seen.terminating;
      return control::CreateReply{
          ours ? Outcome::kExists : Outcome::kNameConflict, pod.seen.uid, pod.owner_uid, {}};
    }
    const int64_t there = std::count_if(pods_.begin(), pods_.end(), [](const auto& entry) {
      return control::is_alive(entry.second.seen);
    });
    if (there >= quota_) {
      return control::CreateReply{
          Outcome::kRefused,
          {},
          {},
          control::Refusal{api::reason::kAdmissionRefused, "exceeded quota: few"}};
    }
    Pod pod;
    pod.seen.name = spec.name;
    pod.seen.uid = "pod-uid-" + std::to_string(next_uid_++);
    pod.seen.node_index = spec.node_index;
    pod.seen.created_generation = spec.created_generation;
    pod.seen.member = spec.member;
    pod.seen.spare = spec.spare;
    pod.seen.worker_image = spec.worker_image.empty() ? worker_image_ : spec.worker_image;
    pod.seen.created_at = clock_.now();
    pod.owner_uid = spec.job_uid;
    const std::string pod_uid = pod.seen.uid;
    pods_[spec.name] = std::move(pod);
    log_.push_back({Write::Kind::kCreate, spec.name});
    changed();
    return control::CreateReply{Outcome::kCreated, pod_uid, {}, {}};
  });
}

Result<MemoryCluster::Pod*> MemoryCluster::find(const control::PodRef& ref) {
  const auto found = pods_.find(ref.name);
  if (found == pods_.end()) return Error{ErrorCode::kNotFound, "no pod " + ref.name};
  if (found->second.seen.uid != ref.uid) {
    return Error{ErrorCode::kConflict, "pod " + ref.name + " has UID " + found->second.seen.uid +
                                           ", the precondition wanted " + ref.uid};
  }
  return &found->second;
}

Status MemoryCluster::delete_pod(const control::PodRef& pod, Duration grace) {
  return as_write([&]() -> Status {
    TRAINYARD_ASSIGN(Pod * found, find(pod));
    if (found->seen.terminating) return {};
    found->seen.terminating = true;
    if (takes_whole_grace_) found->seen.ends_at = clock_.now() + grace;
    log_.push_back({Write::Kind::kDelete, pod.name});
    changed();
    return {};
  });
}

Status MemoryCluster::remove_member_label(const control::PodRef& pod) {
  return as_write([&]() -> Status {
    TRAINYARD_ASSIGN(Pod * found, find(pod));
    if (!found->seen.member) return {};
    found->seen.member = false;
    log_.push_back({Write::Kind::kLabel, pod.name});
    changed();
    return {};
  });
}

Status MemoryCluster::promote_pod(const control::PodRef& pod, int node_index) {
  return as_write([&]() -> Status {
    TRAINYARD_ASSIGN(Pod * found, find(pod));
    if (found->seen.node_index >= 0 || found->seen.terminating) return {};
    const auto& promoted = job_.status.membership.promoted;
    unannounced_ +=
        std::count(promoted.begin(), promoted.end(), api::Promotion{node_index, pod.uid}) == 0;
    found->seen.node_index = node_index;
    found->seen.member = true;
    log_.push_back({Write::Kind::kPromote, pod.name});
    changed();
    return {};
  });
}

Status MemoryCluster::delete_job(const control::JobKey& job, const std::string& uid) {
  return as_write([&]() -> Status {
    if (!exists_ || job != key()) return Error{ErrorCode::kNotFound, "no TrainingJob " + job.name};
    if (uid != job_.metadata.uid) return Error{ErrorCode::kConflict, "another UID"};
    exists_ = false;
    std::erase_if(pods_, [&](const auto& entry) { return entry.second.owner_uid == uid; });
    log_.push_back({Write::Kind::kDeleteJob, job.name});
    changed();
    return {};
  });
}

Status MemoryCluster::emit_event(const control::JobKey& /*key*/, const control::Event& event) {
  return as_write([&]() -> Status {
    log_.push_back({Write::Kind::kEvent, event.reason});
    return {};
  });
}

MemoryCluster::Change::~Change() {
  lock_.unlock();
  const std::lock_guard lock(cluster_.listener_mutex_);
  if (cluster_.listener_) cluster_.listener_(cluster_.key());
}

void MemoryCluster::set_listener(Listener listener) {
  const std::lock_guard lock(listener_mutex_);
  listener_ = std::move(listener);
}

}  // namespace trainyard::testing_support

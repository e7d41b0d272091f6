#include "worker/comm/nccl_core.h"

#include <algorithm>
#include <utility>

#include "common/base/seconds_text.h"

namespace trainyard::comm {
namespace {

/// Between two looks at events: about a tenth of what a small collective takes.
constexpr std::chrono::microseconds kPause{10};
/// Between two questions for errors that the library keeps, and between two looks of those who wait
/// at the thread that calls it.
constexpr std::chrono::milliseconds kErrorPause{5};

}  // namespace

NcclCore::NcclCore(const Settings& settings) : settings_(settings) {}

void NcclCore::start() {
  has_ended_ = false;
  std::thread([self = shared_from_this()] { self->work(); }).detach();
}

NcclGroup& NcclCore::add(std::unique_ptr<NcclGroup> group) {
  const std::lock_guard lock(mutex_);
  return *groups_.emplace_back(std::move(group));
}

engine::SideStream& NcclCore::add(std::unique_ptr<engine::SideStream> stream) {
  const std::lock_guard lock(mutex_);
  return *streams_.emplace_back(std::move(stream));
}

Status NcclCore::run(const std::function<Status()>& task) {
  const auto result = std::make_shared<std::optional<Status>>();
  std::unique_lock lock(mutex_);
  if (failure_) return wait_for_aborts(lock);
  // What never returns may still read its task.
  tasks_.emplace_back([self = shared_from_this(), task, result] {
    Status status = task();
    const std::lock_guard locked(self->mutex_);
    *result = std::move(status);
    self->changed_.notify_all();
  });
  changed_.notify_all();
  while (!*result && !failure_) {
    changed_.wait_for(lock, kErrorPause);
    watch_call(lock);
  }
  return failure_ ? wait_for_aborts(lock) : **result;
}

void NcclCore::enqueue(std::shared_ptr<NcclOperation> operation) {
  const std::lock_guard lock(mutex_);
  ++operation->group->counters.operations;
  if (failure_) {
    operation->result = Status(*failure_);
    return;
  }
  tasks_.emplace_back([this, operation = std::move(operation)] {
    launch({operation}, [&] { return operation->start(); });
  });
  changed_.notify_all();
}

void NcclCore::enqueue_together(std::vector<std::shared_ptr<NcclOperation>> operations) {
  const std::lock_guard lock(mutex_);
  for (const auto& operation : operations) {
    ++operation->group->counters.operations;
    if (failure_) operation->result = Status(*failure_);
  }
  if (failure_) return;
  tasks_.emplace_back([this, operations = std::move(operations)] {
    launch(operations, [&] {
      const auto starts = [](const auto& operation) { return operation->start(); };
      const auto settles = [this](const auto& operation) {
        return settle(name_of(operation->kind).data(), *operation->group);
      };
      return start_group() && std::all_of(operations.begin(), operations.end(), starts) &&
             end_group() && std::all_of(operations.begin(), operations.end(), settles);
    });
  });
  changed_.notify_all();
}

Status NcclCore::wait(const NcclOperation& operation) {
  std::unique_lock lock(mutex_);
  while (!operation.result && !failure_) {
    changed_.wait_for(lock, kErrorPause);
    watch_call(lock);
  }
  if (operation.result && *operation.result) return {};
  return wait_for_aborts(lock);
}

bool NcclCore::is_done(const NcclOperation& operation) {
  const std::lock_guard lock(mutex_);
  return operation.result || failure_;
}

/// As long again as a call may take, as check_progress(): a peer's call may be what hangs.
bool NcclCore::settle(const char* name, const NcclGroup& group) {
  const auto end = Clock::now() + 2 * settings_.deadline;
  while (true) {
    int state = nccl::kSuccess;
    const bool asked = call("ncclCommGetAsyncError", &group,
                            [&] { return settings_.api.comm_async_error(group.comm, &state); });
    if (!asked) return false;
    if (state == nccl::kSuccess) return true;
    if (state != nccl::kInProgress) {
      fail_by_library(name, group, state);
      return false;
    }
    if (Clock::now() >= end) {
      fail({ErrorCode::kDeadline, "rank " + std::to_string(settings_.rank) + ": NCCL: " + name +
                                      " of " + group.ranks + " was not done within " +
                                      seconds_text(2 * settings_.deadline)},
           {});
      return false;
    }
    std::this_thread::sleep_for(kPause);
  }
}

void NcclCore::work() {
  if (!streams_.empty()) {
    if (Status entered = streams_.front()->enter(); !entered) fail(entered.error(), {});
  }
  while (true) {
    std::function<void()> task;
    {
      std::unique_lock lock(mutex_);
      if (tasks_.empty() && on_way_.empty()) {
        if (stops_) break;
        changed_.wait(lock, [&] { return !tasks_.empty() || stops_; });
      }
      if (!tasks_.empty()) {
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
    }
    if (task) {
      task();
    } else if (!poll()) {
      std::this_thread::sleep_for(kPause);
    }
  }
  if (!failure()) drain();
  const std::lock_guard lock(mutex_);
  has_ended_ = true;
  changed_.notify_all();
}

/// After a failure: until the streams have come to their ends. An abort ends the library's kernels,
/// and nothing else. Whoever frees memory would wait for the rest, on a GPU that hangs for ever:
/// this thread does in their place, and close() is told that it has not ended.
void NcclCore::drain() {
  for (const auto& stream : streams_) {
    const Result<engine::SideStream::MomentPtr> end = stream->now();
    while (end) {
      const Result<bool> passed = (*end)->passed();
      if (!passed || *passed) break;  // after an error of the GPU nothing waits any more
      std::this_thread::sleep_for(kErrorPause);
    }
  }
}

void NcclCore::launch(const std::vector<std::shared_ptr<NcclOperation>>& operations,
                      const std::function<bool()>& start) {
  const auto go = [&]() -> Status {
    TRAINYARD_TRY(failure());
    for (const auto& operation : operations) {
      engine::SideStream& stream = *operation->group->stream;
      TRAINYARD_TRY(stream.after(*operation->after));
      TRAINYARD_ASSIGN(operation->begun, stream.now());
    }
    if (!start()) return failure();
    for (const auto& operation : operations) {
      TRAINYARD_ASSIGN(operation->ended, operation->group->stream->now());
    }
    return {};
  };
  const Status status = go();
  if (status) {
    on_way_.insert(on_way_.end(), operations.begin(), operations.end());
    return;
  }
  fail(status.error(), {});
  for (const auto& operation : operations)
    finish(*operation, status);
}

bool NcclCore::start_group() {
  return call("ncclGroupStart", nullptr, [&] { return settings_.api.group_start(); });
}
bool NcclCore::end_group() {
  return call("ncclGroupEnd", nullptr, [&] { return settings_.api.group_end(); });
}

void NcclCore::finish(NcclOperation& operation, Status result) {
  NcclGroup& group = *operation.group;
  if (result && group.sink != nullptr) {
    group.sink->add(group.track, {.activity = trace::Activity::kCollective,
                                  .begin_ns = operation.begun_ns,
                                  .end_ns = trace::monotonic_ns(),
                                  .sequence = group.sequence,
                                  .bytes = operation.bytes,
                                  .operation = name_of(operation.kind)});
  }
  const std::lock_guard lock(mutex_);
  ++group.sequence;
  OperationCounters& kind = group.counters.by_operation[static_cast<size_t>(operation.kind) - 1];
  ++kind.operations;
  if (result) {
    group.counters.bytes_sent += operation.bytes_sent;
    group.counters.bytes_received += operation.bytes_received;
    kind.bytes_sent += operation.bytes_sent;
    kind.bytes_received += operation.bytes_received;
    kind.time += std::chrono::nanoseconds(trace::monotonic_ns() - operation.begun_ns);
  }
  operation.result = std::move(result);
  changed_.notify_all();
}

bool NcclCore::poll() {
  if (const Status status = failure(); !status) {
    for (const auto& operation : on_way_)
      finish(*operation, status);
    on_way_.clear();
    return true;
  }
  check_errors();
  for (auto at = on_way_.begin(); at != on_way_.end(); ++at) {
    NcclOperation& operation = **at;
    Result<bool> passed = operation.begun->passed();
    if (passed && *passed && !operation.begun_at) {
      operation.begun_at = Clock::now();
      operation.begun_ns = trace::monotonic_ns();
    }
    if (passed && *passed) passed = operation.ended->passed();
    if (!passed) {
      fail(passed.error(), {});
      return true;
    }
    if (*passed) {
      finish(operation, {});
      on_way_.erase(at);
      return true;
    }
    check_progress(operation);
  }
  return false;
}

/// As long again as a call may take: the rank whose call does not return knows the cause.
void NcclCore::check_progress(const NcclOperation& operation) {
  if (!operation.begun_at) return;
  if (Clock::now() - *operation.begun_at < 2 * settings_.deadline) return;
  fail({ErrorCode::kDeadline, "rank " + std::to_string(settings_.rank) +
                                  ": NCCL: " + std::string(name_of(operation.kind)) + " of " +
                                  operation.group->ranks + " made no progress for " +
                                  seconds_text(2 * settings_.deadline) +
                                  ": one of them has not reached it, or a link is down"},
       {});
}

void NcclCore::check_errors() {
  if (Clock::now() - errors_asked_ < kErrorPause) return;
  errors_asked_ = Clock::now();
  std::vector<const NcclGroup*> asked;
  for (const auto& operation : on_way_) {
    const NcclGroup* const group = operation->group;
    if (std::find(asked.begin(), asked.end(), group) != asked.end()) continue;
    asked.push_back(group);
    int state = nccl::kSuccess;
    const bool accepted = call("ncclCommGetAsyncError", group,
                               [&] { return settings_.api.comm_async_error(group->comm, &state); });
    if (!accepted) return;
    if (state == nccl::kSuccess || state == nccl::kInProgress) continue;
    fail_by_library("an operation", *group, state);
    return;
  }
}

/// In one group of calls: a thread may have no second call under way outside one.
Status NcclCore::create(const std::vector<std::pair<NcclGroup*, nccl::UniqueId>>& groups) {
  if (groups.empty()) return {};
  if (!start_group()) return failure();
  for (const auto& [group, id] : groups) {
    const auto made = std::make_shared<nccl::Comm>(nullptr);
    const bool begun = call("ncclCommInitRankConfig", group, [&, group = group, id = id] {
      nccl::Config config;
      config.max_ctas = group->ctas_max;
      return settings_.api.comm_init(made.get(), group->size, id, group->rank, &config);
    });
    const std::lock_guard lock(mutex_);
    group->comm = *made;
    if (failure_ && *made != nullptr) abort_locked(*made);  // nobody knew of it
    if (!begun || failure_) return *failure_;
  }
  if (!end_group()) return failure();
  for (const auto& [group, id] : groups) {
    if (!settle("ncclCommInitRankConfig", *group)) return failure();
  }
  return {};
}

/// Within a task: lets every communicator end by itself, in one group of calls as create().
Status NcclCore::finalize() {
  if (!start_group()) return failure();
  for (const auto& group : groups_) {
    if (group->comm == nullptr) continue;
    const bool ends = call("ncclCommFinalize", group.get(),
                           [&] { return settings_.api.comm_finalize(group->comm); });
    if (!ends) return failure();
  }
  if (!end_group()) return failure();
  for (const auto& group : groups_) {
    if (group->comm == nullptr) continue;
    if (!settle("ncclCommFinalize", *group)) return failure();
    const bool gone =
        call("ncclCommDestroy", nullptr, [&] { return settings_.api.comm_destroy(group->comm); });
    if (!gone) return failure();
    const std::lock_guard lock(mutex_);
    group->comm = nullptr;
  }
  return {};
}

Status NcclCore::close(const std::function<Status()>& meet) {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(closed_, true)) return {};
  }
  is_closing_ = true;  // a rank that is ahead may leave the guard
  if (failure()) {
    if (const Status met = meet(); !met) fail(met.error(), {});
  }
  if (guard_ != nullptr) {
    message_->cancel();
    listener_.join();
  }
  if (failure()) (void)run([this] { return finalize(); });
  std::unique_lock lock(mutex_);
  if (failure_) (void)wait_for_aborts(lock);
  stops_ = true;
  changed_.notify_all();
  changed_.wait_for(lock, settings_.deadline, [&] { return has_ended_; });
  return failure_ ? Status(*failure_) : Status();
}

bool NcclCore::is_stuck() {
  const std::lock_guard lock(mutex_);
  return aborting_ > 0 || abort_failed_ || (stops_ && !has_ended_);
}

void NcclCore::release_streams() {
  const std::lock_guard lock(mutex_);
  streams_.clear();
}

void NcclCore::forget(NcclGroup& group) {
  const std::lock_guard lock(mutex_);
  group.host = nullptr;
  group.sink = nullptr;
}

}  // namespace trainyard::comm

#include "common/base/check.h"
#include "common/base/seconds_text.h"
#include "worker/comm/nccl_core.h"

/// How an NcclCore learns that a call or a peer has failed, and what it ends then.
namespace trainyard::comm {
namespace {

/// Longer than any run.
constexpr std::chrono::hours kGuardPatience{24 * 365};
/// For a call to return once its communicators are ended.
constexpr std::chrono::milliseconds kReturnTime{200};

}  // namespace

void NcclCore::watch(Communicator& guard) {
  const std::lock_guard lock(mutex_);
  guard_ = &guard;
  const int before = (guard.rank() + guard.size() - 1) % guard.size();
  message_ = guard.receive(std::span(&never_, 1), before, {.patience = kGuardPatience});
  listener_ = std::jthread([this, &guard] { listen(message_, guard); });
}

/// Nothing is ever sent: what ends it is the end of the rank before this one, a failure of any
/// rank, or close().
void NcclCore::listen(const WorkPtr& message, Communicator& guard) {
  const Status heard = message->wait();
  if (!heard && !is_closing_) fail(heard.error(), guard.lost_ranks());
}

bool NcclCore::call(const char* name, const NcclGroup* group,
                    const std::function<int()>& function) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return false;
    calling_ = name;
    called_at_ = Clock::now();
  }
  const int result = function();
  {
    const std::lock_guard lock(mutex_);
    calling_ = nullptr;
    changed_.notify_all();
    if (failure_) return false;
  }
  if (result == nccl::kSuccess || result == nccl::kInProgress) return true;
  fail(failed_call(name, group, result), {});
  return false;
}

/// Asks the library for its words, too, by calls that are watched like any other.
Error NcclCore::failed_call(const char* name, const NcclGroup* group, int result) {
  std::string text = "rank " + std::to_string(settings_.rank) + ": NCCL: " + name;
  if (group != nullptr && !group->ranks.empty()) text += " of " + group->ranks;
  text += ": error " + std::to_string(result);
  const auto ask = [&](const char* function, const std::function<const char*()>& words) {
    const char* answer = nullptr;
    const bool accepted = call(function, nullptr, [&] {
      answer = words();
      return nccl::kSuccess;
    });
    if (accepted && answer != nullptr && *answer != '\0') text += std::string(": ") + answer;
  };
  ask("ncclGetErrorString", [&] { return settings_.api.error_string(result); });
  if (group != nullptr && group->comm != nullptr)
    ask("ncclGetLastError", [&] { return settings_.api.last_error(group->comm); });
  return {ErrorCode::kUnavailable, text + "; NCCL_DEBUG=WARN in the environment says more"};
}

/// A peer that is lost is named by the host's groups, which hear of it soon.
void NcclCore::fail_by_library(const char* name, const NcclGroup& group, int state) {
  {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, settings_.grace, [&] { return failure_.has_value(); });
    if (failure_) return;
  }
  fail(failed_call(name, &group, state), {});
}

void NcclCore::watch_call(std::unique_lock<std::mutex>& lock) {
  TRAINYARD_CHECK(lock.owns_lock());
  if (failure_ || calling_ == nullptr || Clock::now() - called_at_ < settings_.deadline) return;
  fail_locked(
      {ErrorCode::kDeadline, "rank " + std::to_string(settings_.rank) + ": NCCL: " + calling_ +
                                 " has not returned within " + seconds_text(settings_.deadline)},
      {});
}

void NcclCore::fail(const Error& reason, std::span<const int> lost_ranks) {
  const std::lock_guard lock(mutex_);
  fail_locked(reason, lost_ranks);
}

void NcclCore::fail_locked(const Error& reason, std::span<const int> lost_ranks) {
  if (failure_) return;
  failure_ = reason;
  aborted_by_ = Clock::now() + settings_.deadline;
  lost_ranks_.assign(lost_ranks.begin(), lost_ranks.end());
  // Peers hear of it in whatever group they wait.
  if (guard_ != nullptr) guard_->abort(reason, lost_ranks);
  for (const auto& group : groups_) {
    if (group->host != nullptr) group->host->abort(reason, lost_ranks);
  }
  abort_communicators_locked();
  changed_.notify_all();
}

/// All at the same time: one that frees memory waits for the kernels of the others.
void NcclCore::abort_communicators_locked() {
  for (const auto& group : groups_) {
    if (group->comm == nullptr) continue;
    abort_locked(group->comm);
  }
}

void NcclCore::abort_locked(nccl::Comm comm) {
  ++aborting_;
  std::thread([self = shared_from_this(), comm] {
    {
      // A call that is about to return may still use the communicator.
      std::unique_lock lock(self->mutex_);
      self->changed_.wait_for(lock, kReturnTime, [&] { return self->calling_ == nullptr; });
    }
    const int result = self->settings_.api.comm_abort(comm);
    const std::lock_guard lock(self->mutex_);
    --self->aborting_;
    const bool ended = result == nccl::kSuccess || result == nccl::kInProgress;
    self->abort_failed_ = self->abort_failed_ || !ended;
    self->changed_.notify_all();
  }).detach();
}

Status NcclCore::wait_for_aborts(std::unique_lock<std::mutex>& lock) {
  const bool ended =
      changed_.wait_until(lock, aborted_by_, [&] { return aborting_ == 0; }) && !abort_failed_;
  if (ended) return *failure_;
  return Error{failure_->code,
               failure_->message + (abort_failed_ ? "; ncclCommAbort failed, too"
                                                  : "; ncclCommAbort has not returned, either")};
}

Status NcclCore::failure() {
  const std::lock_guard lock(mutex_);
  return failure_ ? Status(*failure_) : Status();
}

std::vector<int> NcclCore::lost_ranks() {
  const std::lock_guard lock(mutex_);
  return lost_ranks_;
}

}  // namespace trainyard::comm

#include "worker/checkpoint/writer.h"

#include <condition_variable>
#include <mutex>
#include <thread>

#include "worker/checkpoint/save.h"

namespace trainyard::checkpoint {

using SteadyClock = std::chrono::steady_clock;

/// The thread and the state it shares with the caller; everything below `mutex` is guarded by it.
class CheckpointWriter::Impl {
 public:
  Impl(std::shared_ptr<FileSystem> files, CommitGroup& group, WriterOptions options,
       StartedGeneration started)
      : group_(group),
        options_(std::move(options)),
        started_(std::move(started)),
        previous_(started_.resumed_from),
        disk_(std::move(files), options_.hang_limit),
        last_step_(previous_ ? previous_->id.step : -1),
        thread_([this](const std::stop_token& stop) { loop(stop); }) {}

  Status begin(int64_t step, Result<Snapshot> snapshot) {
    if (snapshot) {
      for (const TensorSlice& slice : snapshot->slices)
        TRAINYARD_TRY(check_slice(slice));
    }
    const std::lock_guard lock(mutex_);
    if (pending_ || busy_ || outcome_) {
      return Error{ErrorCode::kUnavailable, "checkpoint at step " + std::to_string(last_step_) +
                                                " has not ended, or its outcome was not fetched"};
    }
    const bool again = step == last_step_ && failed_;
    if (step <= last_step_ && !again) {
      return Error{ErrorCode::kAlreadyExists, "checkpoint at step " + std::to_string(step) +
                                                  ": step " + std::to_string(last_step_) +
                                                  " has already started"};
    }
    last_step_ = step;
    pending_ = std::move(snapshot);
    begun_ = SteadyClock::now();
    wake_.notify_all();
    return {};
  }

  std::optional<CheckpointOutcome> poll() {
    const std::lock_guard lock(mutex_);
    return std::exchange(outcome_, std::nullopt);
  }

  std::optional<CheckpointOutcome> wait(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    ended_.wait_for(lock, timeout, [this] { return !pending_ && !busy_; });
    return std::exchange(outcome_, std::nullopt);
  }

  bool busy() const {
    const std::lock_guard lock(mutex_);
    return pending_ || busy_;
  }

 private:
  void loop(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (true) {
      // What has been begun is finished even when the owner goes away: other ranks count on it.
      if (!wake_.wait(lock, stop, [this] { return pending_.has_value(); })) return;
      Result<Snapshot> snapshot = *std::exchange(pending_, std::nullopt);
      busy_ = true;
      const auto begun = begun_;
      const CheckpointId id{started_.record.generation, last_step_};
      lock.unlock();
      Save save({disk_, group_, options_, started_}, id, previous_);
      CheckpointOutcome outcome = save.run(std::move(snapshot));
      previous_ = save.previous();
      outcome.seconds = std::chrono::duration<double>(SteadyClock::now() - begun).count();
      lock.lock();
      busy_ = false;
      failed_ = !outcome.status;
      outcome_ = std::move(outcome);
      ended_.notify_all();
    }
  }

  CommitGroup& group_;
  const WriterOptions options_;
  const StartedGeneration started_;
  std::optional<ManifestRef> previous_;  // the writer's thread only
  DiskThread disk_;                      // the writer's thread only

  mutable std::mutex mutex_;
  std::condition_variable_any wake_;
  std::condition_variable ended_;
  std::optional<Result<Snapshot>> pending_;
  std::optional<CheckpointOutcome> outcome_;
  bool busy_ = false;
  int64_t last_step_;
  bool failed_ = false;  ///< how the newest one ended
  SteadyClock::time_point begun_;

  std::jthread thread_;  // last: it starts when everything above is there
};

bool ends_generation(ErrorCode code) {
  return code == ErrorCode::kPeerLost || code == ErrorCode::kDeadline ||
         code == ErrorCode::kAborted || code == ErrorCode::kInternal;
}

bool CheckpointOutcome::ends_generation() const {
  if (status) return false;
  return !agreed || checkpoint::ends_generation(status.error().code);
}

CheckpointWriter::CheckpointWriter(std::shared_ptr<FileSystem> files, CommitGroup& group,
                                   WriterOptions options, StartedGeneration started)
    : impl_(std::make_unique<Impl>(std::move(files), group, std::move(options),
                                   std::move(started))) {}
CheckpointWriter::~CheckpointWriter() = default;
Status CheckpointWriter::begin(Snapshot snapshot) {
  const int64_t step = snapshot.step;
  return impl_->begin(step, std::move(snapshot));
}
Status CheckpointWriter::decline(int64_t step, Error reason) {
  return impl_->begin(step, std::move(reason));
}
std::optional<CheckpointOutcome> CheckpointWriter::poll() { return impl_->poll(); }
std::optional<CheckpointOutcome> CheckpointWriter::wait(std::chrono::milliseconds timeout) {
  return impl_->wait(timeout);
}
bool CheckpointWriter::busy() const { return impl_->busy(); }

}  // namespace trainyard::checkpoint

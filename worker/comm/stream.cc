#include "worker/comm/stream.h"

#include <utility>

#include "worker/comm/reduce.h"

namespace trainyard::comm {

class Stream::Operation final : public Work {
 public:
  Operation(std::shared_ptr<Stream> stream, Body body)
      : stream_(std::move(stream)), body_(std::move(body)) {}

  bool done() const override { return state_.load(std::memory_order_acquire) != 0; }

  Status wait() override {
    if (!done()) stream_->help(*this);
    while (!done())
      state_.wait(0, std::memory_order_acquire);
    return result_;
  }

  /// Runs the body unless the group has failed before.
  void run() {
    const Group& group = *stream_->group_;
    finish(group.failed() ? Status(group.error()) : body_(*stream_->collectives_));
  }

  void finish(Status result) {
    result_ = std::move(result);
    // Before anyone can see that it is done: who has waited for all works leaves nothing pending.
    stream_->unfinished_.fetch_sub(1, std::memory_order_acq_rel);
    body_ = nullptr;
    state_.store(1, std::memory_order_release);
    state_.notify_all();
  }

 private:
  const std::shared_ptr<Stream> stream_;
  Body body_;
  Status result_;
  std::atomic<uint32_t> state_{0};
};

Stream::Stream(std::shared_ptr<Group> group, std::shared_ptr<Transport> transport)
    : group_(group), collectives_(std::make_unique<Collectives>(group, std::move(transport))) {}

Stream::~Stream() = default;

void Stream::start() {
  thread_ = std::thread([this] { thread_main(); });
}

WorkPtr Stream::enqueue(Body body) {
  auto operation = std::make_shared<Operation>(shared_from_this(), std::move(body));
  operations_.fetch_add(1, std::memory_order_relaxed);
  unfinished_.fetch_add(1, std::memory_order_acq_rel);
  bool accepted = false;
  {
    const std::lock_guard lock(queue_mutex_);
    accepted = !stopping_ && !group_->failed() && queue_.size() < kMaxQueued;
    if (accepted) queue_.push_back(operation);
  }
  if (accepted) {
    queue_changed_.notify_one();
    return operation;
  }
  if (!group_->failed()) {
    group_->fail(
        Failure(Error{ErrorCode::kInternal, std::to_string(kMaxQueued) +
                                                " operations are queued on one communicator: wait "
                                                "for some before issuing more"}));
  }
  operation->finish(group_->error());
  return operation;
}

void Stream::run_queue(const Operation* until) {
  const ScopedFloatMode float_mode;
  while (true) {
    std::shared_ptr<Operation> operation;
    {
      const std::lock_guard lock(queue_mutex_);
      if (queue_.empty()) return;
      operation = std::move(queue_.front());
      queue_.pop_front();
    }
    operation->run();
    if (operation.get() == until) return;
  }
}

void Stream::help(const Operation& operation) {
  const std::unique_lock executor(executor_mutex_, std::try_to_lock);
  if (executor.owns_lock() && !operation.done()) run_queue(&operation);
}

void Stream::thread_main() {
  while (true) {
    {
      std::unique_lock lock(queue_mutex_);
      queue_changed_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
      if (stopping_ && queue_.empty()) return;
    }
    const std::lock_guard executor(executor_mutex_);
    run_queue(nullptr);
  }
}

void Stream::shut_down() {
  {
    const std::lock_guard lock(queue_mutex_);
    if (stopping_) return;
    stopping_ = true;
  }
  if (unfinished_.load(std::memory_order_acquire) != 0) {
    group_->fail(Failure(
        Error{ErrorCode::kAborted, "the communicator was destroyed with operations pending"}));
  }
  queue_changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  const std::lock_guard executor(executor_mutex_);
  run_queue(nullptr);
  group_->leave();
  collectives_.reset();
}

Counters Stream::counters() const {
  const Exchange& exchange = collectives_->exchange();
  return {exchange.bytes_sent(), exchange.bytes_received(),
          operations_.load(std::memory_order_relaxed)};
}

}  // namespace trainyard::comm

#include "worker/comm/host/stream.h"

#include <chrono>
#include <utility>

#include "worker/comm/host/reduce.h"

namespace trainyard::comm {
namespace {

/// How long an operation that nobody waits for may lie before the thread sees it by itself.
constexpr std::chrono::microseconds kNap{500};
constexpr size_t kSmallBytes = 256 * 1024;
/// Naps after the newest operation before the thread sleeps for good.
constexpr int kNaps = 20;

}  // namespace

class Stream::QueuedWork final : public Work {
 public:
  QueuedWork(std::shared_ptr<Stream> stream, Operation op, size_t bytes, Body body)
      : stream_(std::move(stream)), op_(op), bytes_(bytes), body_(std::move(body)) {}

  bool done() const override { return state_.load(std::memory_order_acquire) != 0; }

  Status wait() override {
    if (done()) return result_;
    stream_->group_->enter_wait();
    stream_->help(*this);
    while (!done())
      state_.wait(0, std::memory_order_acquire);
    stream_->group_->leave_wait();
    return result_;
  }

  void cancel() override {
    cancelled_.store(true, std::memory_order_release);
    stream_->group_->wake();
  }

  /// Runs the body unless the group has failed before.
  void run() {
    const Group& group = *stream_->group_;
    finish(group.failed() ? Status(group.error()) : run_body());
  }

  void finish(Status result) {
    result_ = std::move(result);
    // Before anyone can see that it is done: who has waited for all works leaves nothing pending.
    stream_->unfinished_.fetch_sub(1, std::memory_order_acq_rel);
    body_.clear();
    state_.store(1, std::memory_order_release);
    state_.notify_all();
  }

 private:
  Status run_body() {
    trace::SpanSink* const sink = stream_->sink_;
    if (sink == nullptr) return stream_->execute(op_, body_, cancelled_);
    trace::Span span{.activity = trace::Activity::kCollective,
                     .begin_ns = trace::monotonic_ns(),
                     .bytes = static_cast<int64_t>(bytes_)};
    Status result = stream_->execute(op_, body_, cancelled_);
    span.end_ns = trace::monotonic_ns();
    const Signature& signature = stream_->collectives_->signature();
    span.sequence = static_cast<int64_t>(signature.sequence);
    span.operation = name_of(signature.op);
    sink->add(stream_->track_, span);
    return result;
  }

  friend class Stream;

  std::shared_ptr<QueuedWork> next_;  ///< in the queue, under its lock
  const std::shared_ptr<Stream> stream_;
  const Operation op_;
  const size_t bytes_;
  std::atomic<bool> cancelled_{false};
  Body body_;
  Status result_;
  std::atomic<uint32_t> state_{0};
};

Stream::Stream(std::shared_ptr<Group> group, std::shared_ptr<Transport> transport)
    : group_(group),
      pool_(std::make_shared<BlockPool>()),
      collectives_(std::make_unique<Collectives>(group, std::move(transport))) {}

Stream::~Stream() = default;

void Stream::start() {
  thread_ = std::thread([this] { thread_main(); });
}

Status Stream::execute(Operation op, const Body& body, const std::atomic<bool>& cancelled) {
  const Exchange& exchange = collectives_->exchange();
  const int64_t sent = exchange.bytes_sent();
  const int64_t received = exchange.bytes_received();
  const auto begin = std::chrono::steady_clock::now();
  Status status = body(*collectives_, cancelled);
  const std::chrono::nanoseconds took = std::chrono::steady_clock::now() - begin;
  Tally& tally = tallies_[static_cast<size_t>(op) - 1];
  // Only the executor writes, so that no addition need be atomic as a whole.
  const auto add = [](std::atomic<int64_t>& to, int64_t value) {
    to.store(to.load(std::memory_order_relaxed) + value, std::memory_order_relaxed);
  };
  add(tally.operations, 1);
  add(tally.bytes_sent, exchange.bytes_sent() - sent);
  add(tally.bytes_received, exchange.bytes_received() - received);
  add(tally.nanoseconds, took.count());
  return status;
}

WorkPtr Stream::enqueue(Operation op, size_t bytes, Body body) {
  auto operation = std::allocate_shared<QueuedWork>(PoolAllocator<QueuedWork>(pool_),
                                                    shared_from_this(), op, bytes, std::move(body));
  operations_.fetch_add(1, std::memory_order_relaxed);
  unfinished_.fetch_add(1, std::memory_order_acq_rel);
  bool accepted = false;
  {
    const std::lock_guard lock(queue_mutex_);
    accepted = !stopping_ && !group_->failed() && queued_ < kMaxQueued;
    if (accepted) {
      push(operation);
      if (bytes > kSmallBytes || asleep_ || queued_ > 1) call();
    }
  }
  if (accepted) return operation;
  if (!group_->failed()) {
    group_->fail(
        Failure(Error{ErrorCode::kInternal, std::to_string(kMaxQueued) +
                                                " operations are queued on one communicator: wait "
                                                "for some before issuing more"}));
  }
  operation->finish(group_->error());
  return operation;
}

void Stream::push(std::shared_ptr<QueuedWork> operation) {
  QueuedWork* const newest = operation.get();
  (last_ == nullptr ? first_ : last_->next_) = std::move(operation);
  last_ = newest;
  ++queued_;
}

std::shared_ptr<Stream::QueuedWork> Stream::pop() {
  std::shared_ptr<QueuedWork> oldest = std::move(first_);
  if (oldest == nullptr) return oldest;
  first_ = std::move(oldest->next_);
  if (first_ == nullptr) last_ = nullptr;
  --queued_;
  return oldest;
}

void Stream::run_queue(const QueuedWork* until) {
  const ScopedFloatMode float_mode;
  while (true) {
    std::shared_ptr<QueuedWork> operation;
    {
      const std::lock_guard lock(queue_mutex_);
      operation = pop();
    }
    if (operation == nullptr) return;
    operation->run();
    if (operation.get() == until) return;
  }
}

void Stream::help(const QueuedWork& operation) {
  {
    const std::unique_lock executor(executor_mutex_, std::try_to_lock);
    if (!executor.owns_lock()) return;
    if (!operation.done()) run_queue(&operation);
  }
  const std::lock_guard lock(queue_mutex_);
  if (first_ != nullptr) call();
}

void Stream::call() {
  called_ = true;
  queue_changed_.notify_one();
}

void Stream::thread_main() {
  std::unique_lock lock(queue_mutex_);
  const auto called = [&] { return stopping_ || called_; };
  int naps = kNaps;
  bool refused = false;  // a caller runs operations; it calls when it leaves any
  int64_t seen = 0;
  while (true) {
    // While operations come one after another, it naps and looks by itself, so that callers who
    // wait at once need not wake it; otherwise it sleeps until it is called.
    if (refused || naps < kNaps) {
      ++naps;
      queue_changed_.wait_for(lock, kNap, called);
    } else {
      asleep_ = true;
      // What came before it fell asleep called nobody.
      queue_changed_.wait(lock, [&] { return called() || first_ != nullptr; });
      asleep_ = false;
    }
    called_ = false;
    refused = false;
    if (first_ == nullptr && stopping_) return;
    const int64_t operations = operations_.load(std::memory_order_relaxed);
    if (std::exchange(seen, operations) != operations) naps = 0;
    if (first_ == nullptr) continue;
    lock.unlock();
    {
      // Waiting for a caller who has the lock would only cost it a wake-up when it is done.
      const std::unique_lock executor(executor_mutex_, std::try_to_lock);
      refused = !executor.owns_lock();
      if (!refused) run_queue(nullptr);
    }
    lock.lock();
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

void Stream::observe(trace::SpanSink* sink, trace::Track track) {
  const std::lock_guard executor(executor_mutex_);
  sink_ = sink;
  track_ = track;
}

Counters Stream::counters() const {
  const Exchange& exchange = collectives_->exchange();
  Counters counters;
  counters.bytes_sent = exchange.bytes_sent();
  counters.bytes_received = exchange.bytes_received();
  counters.operations = operations_.load(std::memory_order_relaxed);
  for (size_t i = 0; i < tallies_.size(); ++i) {
    const Tally& tally = tallies_[i];
    OperationCounters& of_op = counters.by_operation[i];
    of_op.operations = tally.operations.load(std::memory_order_relaxed);
    of_op.bytes_sent = tally.bytes_sent.load(std::memory_order_relaxed);
    of_op.bytes_received = tally.bytes_received.load(std::memory_order_relaxed);
    of_op.time = std::chrono::nanoseconds(tally.nanoseconds.load(std::memory_order_relaxed));
  }
  return counters;
}

}  // namespace trainyard::comm

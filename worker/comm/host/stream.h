#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>

#include "common/base/error.h"
#include "worker/comm/communicator.h"
#include "worker/comm/host/block_pool.h"
#include "worker/comm/host/collectives.h"
#include "worker/comm/host/group.h"
#include "worker/comm/host/inline_function.h"

namespace trainyard::comm {

/// The execution stream of one communicator: operations run one after another in the order they
/// were enqueued, on the stream's own thread, or on a thread that waits for one of them (which
/// saves two thread switches where a caller waits at once). Thread-safe.
///
/// Held by shared_ptr, because a Work may outlive its communicator.
class Stream : public std::enable_shared_from_this<Stream> {
 public:
  /// The largest there is: all_to_all with two buffers and their counts.
  static constexpr size_t kMaxBodyBytes = 128;

  /// What an operation does. `cancelled` is set where its Work was asked back.
  using Body =
      InlineFunction<Status(Collectives&, const std::atomic<bool>& cancelled), kMaxBodyBytes>;

  /// More operations than any step has in flight; beyond it the group fails.
  static constexpr size_t kMaxQueued = 65'536;

  Stream(std::shared_ptr<Group> group, std::shared_ptr<Transport> transport);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  /// Starts the thread; once, after construction by make_shared.
  void start();

  /// The work of a new operation on `bytes` bytes at the end of the queue. A small one may be left
  /// for half a millisecond to a caller who waits for it: two thread switches cost more than it
  /// does.
  WorkPtr enqueue(Operation op, size_t bytes, Body body);

  /// Fails what is pending, joins the thread, frees the transport. Bounded: operations end as soon
  /// as the group failed.
  void shut_down();

  /// Every operation run from now on adds a span. Before the first operation.
  void observe(trace::SpanSink* sink, trace::Track track);

  Counters counters() const;

 private:
  class QueuedWork;
  /// OperationCounters that one thread writes and others read.
  struct Tally {
    std::atomic<int64_t> operations{0};
    std::atomic<int64_t> bytes_sent{0};
    std::atomic<int64_t> bytes_received{0};
    std::atomic<int64_t> nanoseconds{0};
  };

  /// Runs an operation's body and counts what it cost. The executor lock is held by the caller.
  Status execute(Operation op, const Body& body, const std::atomic<bool>& cancelled);
  void thread_main();
  /// Runs the queue until it is empty or `until` is done. The executor lock is held by the caller.
  void run_queue(const QueuedWork* until);
  void help(const QueuedWork& operation);
  /// Makes the thread look at the queue, whose lock the caller holds.
  void call();
  /// The same.
  void push(std::shared_ptr<QueuedWork> operation);
  std::shared_ptr<QueuedWork> pop();

  const std::shared_ptr<Group> group_;
  const std::shared_ptr<BlockPool> pool_;  ///< of operations, which may outlive this
  std::mutex executor_mutex_;              ///< held by the one thread that runs operations
  std::unique_ptr<Collectives> collectives_;
  trace::SpanSink* sink_ = nullptr;  ///< as the next, used under the executor lock
  trace::Track track_ = trace::Track::kDataGroup;

  mutable std::mutex queue_mutex_;
  std::condition_variable queue_changed_;
  std::shared_ptr<QueuedWork> first_;  ///< of the queue, whose operations name the next
  QueuedWork* last_ = nullptr;
  size_t queued_ = 0;
  bool stopping_ = false;
  bool called_ = false;  ///< the thread shall look at the queue
  bool asleep_ = false;  ///< the thread does not look by itself
  std::atomic<int64_t> operations_{0};
  std::atomic<int64_t> unfinished_{0};
  std::array<Tally, kOperations.size()> tallies_;  ///< by the place in kOperations
  std::thread thread_;
};

}  // namespace trainyard::comm

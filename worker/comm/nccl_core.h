#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "worker/comm/communicator.h"
#include "worker/comm/nccl_api.h"
#include "worker/device/device.h"

namespace trainyard::comm {

/// One NCCL communicator. Its members are the core's; what only one thread uses says so.
struct NcclGroup {
  std::string ranks;             ///< "ranks 0 and 2"
  Communicator* host = nullptr;  ///< not owned; null once its user is gone
  int rank = 0;
  int size = 1;
  int ctas_max = 0;
  nccl::Comm comm = nullptr;
  engine::SideStream* stream = nullptr;
  trace::SpanSink* sink = nullptr;
  trace::Track track = trace::Track::kShardGroup;
  Counters counters;
  int64_t sequence = 0;
};

/// An operation on its way.
struct NcclOperation {
  NcclGroup* group = nullptr;
  Operation kind = Operation::kAllReduce;
  int64_t bytes = 0;
  int64_t bytes_sent = 0;
  int64_t bytes_received = 0;
  /// Calls the library; true where all calls were accepted.
  std::function<bool()> start;
  engine::SideStream::MomentPtr after;  ///< of the device's thread
  engine::SideStream::MomentPtr begun;  ///< the stream has come to it
  engine::SideStream::MomentPtr ended;
  std::optional<std::chrono::steady_clock::time_point> begun_at;
  int64_t begun_ns = 0;
  std::optional<Status> result;  ///< under the core's lock
};

/// The one thread of a process that calls NCCL, but for ncclCommAbort, which has a thread per
/// communicator. A call that does not return, an error, or an operation without progress for the
/// deadline ends all communicators of the process, and by the groups in the memory of the host
/// those of the peers.
///
/// Held by shared_ptr: a thread that never returns from the library keeps it.
class NcclCore : public std::enable_shared_from_this<NcclCore> {
 public:
  using Clock = std::chrono::steady_clock;
  struct Settings {
    nccl::Api api;
    int rank = 0;  ///< in the world
    std::chrono::milliseconds deadline{};
    /// From the library's word that something failed until it is believed: a peer's loss, which
    /// the host's groups name, is the cause of most.
    std::chrono::milliseconds grace{};
  };

  explicit NcclCore(const Settings& settings);

  /// Starts the thread that calls NCCL.
  void start();
  /// `guard`, not owned, is a group of all ranks in which each hears of the failure of any.
  void watch(Communicator& guard);
  const nccl::Api& api() const { return settings_.api; }

  NcclGroup& add(std::unique_ptr<NcclGroup> group);
  engine::SideStream& add(std::unique_ptr<engine::SideStream> stream);

  /// Runs `task` on the thread that calls NCCL, and returns when it is done. Errors: what all
  /// communicators failed with; a call of it that does not return.
  Status run(const std::function<Status()>& task);
  /// Enqueues an operation.
  void enqueue(std::shared_ptr<NcclOperation> operation);
  /// Enqueues operations of several groups as one group of calls: none of them waits for another.
  /// Their `start` opens no group and settles nothing.
  void enqueue_together(std::vector<std::shared_ptr<NcclOperation>> operations);
  /// Blocks until it is done, or after a failure until no kernel of the library runs any more.
  Status wait(const NcclOperation& operation);
  bool is_done(const NcclOperation& operation);

  /// Within a task or an operation's start: whether the library accepts a call. Otherwise all
  /// communicators have failed. `group`: where the library's words about an error are from.
  bool call(const char* name, const NcclGroup* group, const std::function<int()>& function);
  /// Within a task: polls until a communicator has nothing under way of what was called.
  bool settle(const char* name, const NcclGroup& group);

  /// Within a task: makes the communicators of groups, all at once.
  Status create(const std::vector<std::pair<NcclGroup*, nccl::UniqueId>>& groups);

  /// Fails everything; the first reason stays. Returns at once.
  void fail(const Error& reason, std::span<const int> lost_ranks);
  /// OK, or the reason.
  Status failure();
  std::vector<int> lost_ranks();

  /// Ends all communicators and the threads; `meet` returns once all ranks have come, and is not
  /// called after a failure. Errors: the failure.
  Status close(const std::function<Status()>& meet);
  bool is_stuck();
  /// After close(), where it is not stuck: before the device goes.
  void release_streams();
  /// The group's user goes.
  void forget(NcclGroup& group);
  std::mutex& mutex() { return mutex_; }

 private:
  void work();
  void drain();
  void launch(const std::vector<std::shared_ptr<NcclOperation>>& operations,
              const std::function<bool()>& start);
  bool start_group();
  bool end_group();
  /// Looks at what is on its way; true where something has ended.
  bool poll();
  void finish(NcclOperation& operation, Status result);
  void check_progress(const NcclOperation& operation);
  void check_errors();
  Status finalize();

  // Failures (nccl_failures.cc).
  void listen(const WorkPtr& message, Communicator& guard);
  Error failed_call(const char* name, const NcclGroup* group, int result);
  void fail_by_library(const char* name, const NcclGroup& group, int state);
  /// Of the waiters, with the lock: a call that does not return fails all.
  void watch_call(std::unique_lock<std::mutex>& lock);
  void fail_locked(const Error& reason, std::span<const int> lost_ranks);
  void abort_communicators_locked();
  void abort_locked(nccl::Comm comm);
  /// With the lock, after a failure: until the library has let go, or a deadline has passed.
  Status wait_for_aborts(std::unique_lock<std::mutex>& lock);

  const Settings settings_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<engine::SideStream>> streams_;
  std::vector<std::unique_ptr<NcclGroup>> groups_;
  std::deque<std::function<void()>> tasks_;
  std::deque<std::shared_ptr<NcclOperation>> on_way_;  ///< of the calling thread
  Clock::time_point errors_asked_;                     ///< of the calling thread
  std::optional<Error> failure_;
  std::vector<int> lost_ranks_;
  const char* calling_ = nullptr;  ///< the function that has been called and not returned
  Clock::time_point called_at_;
  Clock::time_point aborted_by_;  ///< after a failure
  int aborting_ = 0;              ///< calls of ncclCommAbort that have not returned
  bool abort_failed_ = false;
  bool stops_ = false;
  bool has_ended_ = true;  ///< the calling thread
  bool closed_ = false;
  Communicator* guard_ = nullptr;
  std::byte never_{};
  WorkPtr message_;  ///< from the rank before this one in the guard, which never sends it
  std::atomic<bool> is_closing_ = false;
  std::jthread listener_;
};

}  // namespace trainyard::comm

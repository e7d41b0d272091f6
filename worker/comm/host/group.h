#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/error.h"
#include "worker/comm/host/wait_board.h"

/// What the ranks of one communicator know of each other beside the data: who they are, who failed,
/// who left.
namespace trainyard::comm {

/// Who is in a group. Ranks inside it are "members", 0..size-1; `global_ranks` are their ranks in
/// the world, which errors name.
struct GroupIdentity {
  std::string job_uid;
  int64_t generation = 0;
  uint64_t id = 0;  ///< 0 for the world; otherwise a hash of the parent, the members and an ordinal
  int member = 0;
  std::vector<int> global_ranks;  ///< by member; each once
  std::vector<int> ring;          ///< members in the order of the ring; empty: 0, 1, 2 ...
  std::chrono::milliseconds deadline{30'000};

  int size() const { return static_cast<int>(global_ranks.size()); }
  int own_rank() const { return global_ranks[static_cast<size_t>(member)]; }
  int rank_of(int of_member) const { return global_ranks[static_cast<size_t>(of_member)]; }
  /// The member at this place of the ring, counted modulo size().
  int member_at(int place) const {
    const int wrapped = ((place % size()) + size()) % size();
    return ring.empty() ? wrapped : ring[static_cast<size_t>(wrapped)];
  }
  /// Where in the ring a member is.
  int place_of(int of_member) const;
};

/// Why a group ended, whose loss it was (global ranks; empty where nobody was lost), and which
/// global rank said so first (-1: this one).
struct Failure {
  Failure() = default;
  explicit Failure(Error why, std::vector<int> lost_ranks = {})
      : error(std::move(why)), lost(std::move(lost_ranks)) {}

  Error error;
  std::vector<int> lost;
  int origin = -1;
};

/// Carries news between the members of one group, apart from the data. Thread-safe; never blocks.
class ControlPlane : public WaitReporter {
 public:
  virtual void send_abort(const Failure& failure) = 0;
  /// This rank leaves in order; nothing is sent afterwards.
  virtual void send_bye() = 0;
};

/// Something that may be blocked and can be told to look again. Thread-safe.
class Waker {
 public:
  virtual ~Waker() = default;
  virtual void wake() = 0;
};

/// The shared state of one communicator: the first failure wins and is final. Thread-safe.
///
/// No lock of this class is held while the control plane or the waker is called, so that members in
/// one process may deliver to each other directly; shared ownership keeps both alive meanwhile.
class Group {
 public:
  /// `board`: of a group whose waits excuse those in this one, which carries its reports; null:
  /// this one has a board of its own.
  explicit Group(GroupIdentity identity, std::shared_ptr<WaitBoard> board = nullptr);

  const GroupIdentity& identity() const { return identity_; }
  const std::shared_ptr<WaitBoard>& board() const { return board_; }

  /// Sets what carries news and what to wake when something happened.
  void attach(std::shared_ptr<ControlPlane> control, std::shared_ptr<Waker> waker);
  /// Says goodbye to the peers, or passes on why the group failed, and lets go of both: no peer may
  /// take a rank that gave up for the one that was lost.
  void leave();

  /// Fast: one load.
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  /// The failure, if there is one.
  std::optional<Failure> failure() const;
  /// The failure's error; only after failed().
  Error error() const;

  /// Ends the group on this rank and tells the peers. Later calls change nothing.
  void fail(Failure failure);

  // News from the control plane. `member` is who it is from.
  void on_abort(int member, const Failure& failure);
  void on_lost(int member, const std::string& how);
  void on_bye(int member);
  void on_waiting(int member, const WaitReport& report);

  /// Makes whoever is blocked for this group look again.
  void wake();

  bool left(int member) const;
  bool any_left() const { return any_left_.load(std::memory_order_acquire); }

  /// Waits until the control plane has said what became of a member whose data connection closed,
  /// at most `patience`. The group's failure if one is known then, otherwise a loss of that member.
  Failure verdict_on(int member, std::chrono::milliseconds patience, const std::string& how);

  /// An operation now waits for these members (empty: it goes on). This rank waits for them while
  /// a thread waits for an operation: one that computes meanwhile is not excused by it.
  void set_stalled(const std::vector<int>& members);
  /// A thread begins or ends to wait for an operation of this group.
  void enter_wait();
  void leave_wait();
  /// Tells the other ranks whom this one waits for.
  void announce_waiting();

  /// Of members awaited without progress, the ranks to blame, see WaitBoard::blamed().
  std::vector<int> blamed(const std::vector<int>& awaited) const;

 private:
  /// `notice` is what peers are told: at once, or with the goodbye where they know it already.
  enum class Tell : uint8_t { kNow, kOnLeaving };
  void end(Failure failure, Failure notice, Tell tell);
  std::vector<int> ranks_of(const std::vector<int>& members) const;
  void put_on_board();  ///< under wait_mutex_

  const GroupIdentity identity_;
  const bool has_own_board_;
  const std::shared_ptr<WaitBoard> board_;
  std::atomic<bool> failed_{false};
  std::atomic<bool> any_left_{false};

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Failure> failure_;
  std::optional<Failure> untold_;
  std::vector<bool> left_;
  std::shared_ptr<ControlPlane> control_;
  std::shared_ptr<Waker> waker_;

  std::mutex wait_mutex_;         // the board is told in the order of what happens
  std::vector<int> stalled_for_;  // ranks; under wait_mutex_
  std::atomic<bool> stalled_{false};
  std::atomic<int> waiting_threads_{0};
};

/// What it is to the others that a rank gives up while they meet. Not a fault of theirs, so
/// kPeerLost, but for kConflict and kInternal, of which both sides tell.
Error gave_up(int rank, const Error& reason);

/// "rank 3", "ranks 3 and 5", from global ranks.
std::string describe_ranks(const std::vector<int>& ranks);

}  // namespace trainyard::comm

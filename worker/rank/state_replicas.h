#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>

#include "common/base/clock.h"
#include "common/base/error.h"
#include "worker/checkpoint/memory_slots.h"
#include "worker/comm/communicator.h"

namespace trainyard::engine {

/// Copies of this rank's states in memory with its keeper, the rank of the next node that has this
/// one's place there, and of its ward's, the one of the node before, here
/// (docs/adr/0034-copies-of-states-on-the-next-node.md).
///
/// Copies are made in rounds, beside training and by a thread of this object: in each, every rank
/// sends one state. A round begins when the one before has ended on all ranks, which is for the
/// caller to find out. So there is always a step whose state every rank or its keeper has.
///
/// Not thread-safe.
class StateReplicas {
 public:
  /// How the newest round stands on this rank. Of several ranks the least counts.
  enum class Round : int64_t {
    kFailed,      ///< none can be begun any more, see failure()
    kSending,     ///< it goes on
    kIncomplete,  ///< none has been begun, a rank had no state to send, or a copy came damaged
    kComplete,    ///< this rank's state, and its ward's, have arrived
  };

  /// `across_nodes`: see comm::Groups::across_nodes(); of two ranks at least. Both are not owned
  /// and outlive this.
  StateReplicas(comm::Communicator& across_nodes, checkpoint::MemorySlots& slots);
  /// Breaks off a round that goes on.
  ~StateReplicas();

  /// When a rank that is asked to stop gives up to fetch a state.
  struct Patience {
    std::function<bool()> stop_asked;  ///< thread-safe; empty: it never is
    Duration after_stop{};             ///< for so long it goes on, all fetches together
  };
  /// Before the first round: fetches the state `id` from the keeper unless it is in the slots,
  /// undamaged. Every rank calls it with the same `id`. Returns whether it was fetched. After an
  /// error the slots are as before, but for one that may be empty. Errors: kNotFound where the
  /// keeper has it not, kInvalidData; those of the communicator, and kAborted where this rank's
  /// patience has ended: then the group ends on all ranks.
  Result<bool> fetch(const checkpoint::CheckpointId& id, const Patience& patience);

  Round round() const;
  /// Why the newest round is kFailed, or kIncomplete for a copy that came damaged; otherwise
  /// without a message.
  Error failure() const;
  /// Begins a round. `has_state`: with the newest state of the slots, otherwise with none.
  void begin_round(bool has_state);

  /// Of the time of a link that one rank's copies may take.
  static constexpr double kLinkShare = 0.1;

 private:
  struct Frame;
  /// Gives room for a state's data.
  using Room = std::function<Result<std::span<std::byte>>()>;

  void serve(const std::stop_token& stop);
  void await_stop(const Patience& patience, const std::stop_token& over);
  Result<Round> exchange(const std::optional<checkpoint::PackedState>& own,
                         const std::stop_token& stop);
  Result<std::optional<std::string>> pass(int to, const std::optional<checkpoint::PackedState>& out,
                                          int from, const Room& room, const std::stop_token* paced);
  Status swap(int to, std::span<const std::byte> out, int from, std::span<std::byte> in);
  void pause(Duration time, const std::stop_token& stop);

  comm::Communicator& group_;
  checkpoint::MemorySlots& slots_;
  const int keeper_;  ///< ranks of group_
  const int ward_;
  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  std::optional<checkpoint::PackedState> sends_;  ///< of the round
  Round round_ = Round::kIncomplete;
  Error failure_;
  /// When a fetch first saw that it is asked to stop; of the thread that watches it.
  std::optional<std::chrono::steady_clock::time_point> stop_seen_;
  std::jthread thread_;  ///< last: it uses those above
};

}  // namespace trainyard::engine

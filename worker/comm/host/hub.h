#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "common/base/error.h"
#include "common/base/unique_fd.h"
#include "worker/comm/factory.h"
#include "worker/comm/host/control_frame.h"
#include "worker/comm/host/group.h"
#include "worker/comm/host/handshake.h"

namespace trainyard::comm {

/// What the hub's thread and its clients share: connections accepted and not yet taken, and control
/// connections of live groups. Thread-safe.
class HubState {
 public:
  HubState(HandshakeIdentity identity, UniqueFd wake);

  /// Makes the thread look at its connections again.
  void wake();

  /// Waits at most until `deadline` for a connection that a peer made. An invalid descriptor when
  /// it has not come.
  UniqueFd take(uint64_t group, int rank, ConnectionKind kind,
                std::chrono::steady_clock::time_point deadline);
  /// Reasons for the connections refused so far, for the error of who waits in vain; newest last.
  std::string refusals() const;

  /// Watches the control connections of a group, by member (invalid for the own one), until
  /// remove().
  uint64_t add(std::weak_ptr<Group> group, std::vector<UniqueFd> connections);
  void remove(uint64_t slot);
  /// Sends to all members of the slot, as far as that goes without blocking.
  void send(uint64_t slot, const ControlFrame& frame);

 private:
  friend class Hub;
  using Key = std::tuple<uint64_t, uint32_t, uint8_t>;  ///< group, rank, channel

  struct Connection {
    UniqueFd fd;
    bool ended = false;
    bool said_bye = false;
    std::vector<std::byte> received;  ///< of a frame not yet complete
  };
  struct Slot {
    std::weak_ptr<Group> group;
    std::vector<Connection> connections;  ///< by member
  };

  const HandshakeIdentity identity_;
  const UniqueFd wake_;
  mutable std::mutex mutex_;
  std::condition_variable accepted_changed_;
  std::map<Key, UniqueFd> accepted_;
  std::deque<std::string> refusals_;
  std::map<uint64_t, Slot> slots_;
  uint64_t next_slot_ = 1;
  bool stopping_ = false;
};

/// One thread of a rank that answers peers who connect and listens to their control connections,
/// for the world and all its sub-groups. Asleep in poll unless there is news.
class Hub {
 public:
  static Result<std::unique_ptr<Hub>> start(Listener listener, HandshakeIdentity identity);
  ~Hub();
  Hub(const Hub&) = delete;
  Hub& operator=(const Hub&) = delete;

  const std::shared_ptr<HubState>& state() const { return state_; }

 private:
  /// A connection that is not accepted yet: its Hello, or its proof, is not complete.
  struct Arrival {
    UniqueFd fd;
    std::array<std::byte, kHelloBytes> received{};
    size_t received_bytes = 0;
    std::optional<Hello> challenged;  ///< and has still to prove that it has the key
    Hash256 nonce{};                  ///< of the challenge
    std::chrono::steady_clock::time_point deadline;
  };
  /// What one poll entry stands for.
  struct Watched {
    uint64_t slot = 0;
    int member = 0;
  };

  Hub(Listener listener, std::shared_ptr<HubState> state);
  void thread_main();
  void accept_all();
  /// False when the arrival is finished, one way or the other.
  bool advance(Arrival& arrival);
  /// Challenges who said a Hello in a keyed generation. False when the connection is over.
  bool challenge(Arrival& arrival, const Hello& hello);
  /// Whether the proof that came is that of the key.
  bool is_proven(const Arrival& arrival) const;
  void accept(Arrival& arrival, const Hello& hello);
  void refuse(const Arrival& arrival, Refusal refusal, const std::string& why, uint64_t nonce = 0);
  /// Whether one more connection can be accepted, if those that have closed are forgotten. Under
  /// the state's mutex.
  bool has_room(size_t accepted_max);
  void read_control(const Watched& watched);
  /// Reads what is there; the frames that are complete, and why the connection is over if it is.
  static std::string receive(HubState::Connection& connection, std::vector<ControlFrame>& frames);

  const Listener listener_;
  const std::shared_ptr<HubState> state_;
  std::deque<Arrival> arrivals_;
  std::chrono::steady_clock::time_point accepts_after_;  ///< of the thread, as arrivals_
  std::thread thread_;
};

}  // namespace trainyard::comm

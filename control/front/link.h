#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "common/base/time.h"
#include "common/base/unique_fd.h"
#include "control/front/http2_gate.h"
#include "control/front/tls.h"

namespace trainyard::control {

/// One connection of the front: TLS with the peer on one side (outer), the plain bytes with gRPC on
/// the other (inner). Of either direction at most one piece of 16 KiB is under way; while it is not
/// taken, nothing more is read. For one thread.
class Link {
 public:
  enum class State { kGoesOn, kEnded, kAtFault };

  /// `serve` takes the inner descriptor over; called once the peer has said something, before that
  /// is passed on. `deadline`: by when it is to have a stream.
  Link(UniqueFd outer, std::string address, MonoTime deadline);

  const std::string& address() const { return address_; }
  int outer() const { return outer_.get(); }
  int inner() const { return inner_.get(); }
  /// What gRPC knows it by, from when it serves it on; -1 before.
  int served() const { return served_; }

  void start(std::unique_ptr<TlsSession> session) { session_ = std::move(session); }
  bool is_started() const { return session_ != nullptr; }
  /// Reads without a bound from now on.
  void admit() { is_admitted_ = true; }

  /// Does what can be done without waiting. No more than `bytes_max` are read before admit(), but
  /// for what lies in a buffer. Of kAtFault fault() tells.
  State pump(int64_t bytes_max, const std::function<void(int fd)>& serve);
  std::string_view fault() const { return fault_; }
  /// pump() has more to do, whatever the descriptors say.
  bool is_busy() const { return is_busy_; }
  int64_t bytes_received() const { return session_ ? session_->bytes_received() : 0; }

  /// Of epoll(7); 0: not to be asked about.
  uint32_t outer_events() const;
  uint32_t inner_events() const;
  /// It is not read before it is its turn, or before it is admitted: by reading nobody will notice
  /// that its peer has gone.
  bool is_bounded() const;

  /// What was asked for last.
  uint32_t outer_asked = 0;
  uint32_t inner_asked = 0;
  MonoTime deadline;
  bool is_ending = false;  ///< its stream has: the deadline is for what is left to send

 private:
  bool may_read() const;
  void move_inwards(const std::function<void(int fd)>& serve);
  void move_outwards();
  void read_outer(const std::function<void(int fd)>& serve);
  void write_inner();
  void read_inner();
  void write_outer();
  void lose_peer();

  UniqueFd outer_;
  UniqueFd inner_;
  int served_ = -1;
  const std::string address_;
  std::unique_ptr<TlsSession> session_;
  Http2Gate gate_;
  std::string to_inner_;
  std::string to_outer_;
  std::string_view fault_;
  int64_t bytes_max_ = 0;
  bool is_admitted_ = false;
  bool wants_write_ = false;  ///< TLS does, in order to read
  bool inner_ended_ = false;
  bool has_ended_ = false;
  bool has_moved_ = false;
  bool is_busy_ = false;
};

}  // namespace trainyard::control

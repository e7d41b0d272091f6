#include "control/front/link.h"

#include <array>
#include <cerrno>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <utility>

namespace trainyard::control {
namespace {

using Outcome = TlsSession::Outcome;

constexpr size_t kPieceBytes = 16 << 10;  // a TLS record
/// Before others have their turn.
constexpr int kRoundsPerTurn = 8;

}  // namespace

Link::Link(UniqueFd outer, std::string address, MonoTime by)
    : deadline(by), outer_(std::move(outer)), address_(std::move(address)) {}

Link::State Link::pump(int64_t bytes_max, const std::function<void(int fd)>& serve) {
  bytes_max_ = bytes_max;
  wants_write_ = false;
  for (int round = 0; round < kRoundsPerTurn; ++round) {
    has_moved_ = false;
    move_inwards(serve);
    if (!fault_.empty()) return State::kAtFault;
    move_outwards();
    if (has_ended_ || (!outer_.valid() && (inner_ended_ || !inner_.valid()))) return State::kEnded;
    if (!has_moved_) break;
  }
  is_busy_ = has_moved_;
  return State::kGoesOn;
}

void Link::move_inwards(const std::function<void(int fd)>& serve) {
  if (!to_inner_.empty()) write_inner();
  // What the peer said last is with gRPC.
  if (!outer_.valid() && to_inner_.empty()) ::shutdown(inner_.get(), SHUT_WR);
  if (may_read()) read_outer(serve);
}

void Link::move_outwards() {
  if (inner_.valid() && !inner_ended_ && to_outer_.empty()) read_inner();
  if (!to_outer_.empty()) write_outer();
  if (inner_ended_ && to_outer_.empty() && outer_.valid()) {
    session_->say_goodbye();
    has_ended_ = true;
  }
}

bool Link::may_read() const {
  return outer_.valid() && !inner_ended_ && to_inner_.empty() && !is_bounded();
}

void Link::read_outer(const std::function<void(int fd)>& serve) {
  std::array<char, kPieceBytes> piece;
  const TlsSession::Step step = session_->read(piece);
  if (step.outcome == Outcome::kEnded) return lose_peer();
  if (step.outcome == Outcome::kWantsWrite) wants_write_ = true;
  if (step.outcome != Outcome::kDone) return;
  has_moved_ = true;
  fault_ = gate_.pass({piece.data(), step.bytes});
  if (!fault_.empty()) return;
  if (!inner_.valid()) {
    std::array<int, 2> ends{};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()) != 0) {
      fault_ = "there is no descriptor left for it";
      return;
    }
    inner_.reset(ends[0]);
    served_ = ends[1];
    serve(served_);
  }
  to_inner_.assign(piece.data(), step.bytes);
  write_inner();
}

void Link::write_inner() {
  const ssize_t sent =
      ::send(inner_.get(), to_inner_.data(), to_inner_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent > 0) {
    has_moved_ = true;
    to_inner_.erase(0, static_cast<size_t>(sent));
  } else if (errno != EAGAIN && errno != EINTR) {
    to_inner_.clear();  // gRPC has closed it; what it still says is to be read
  }
}

void Link::read_inner() {
  std::array<char, kPieceBytes> piece;
  const ssize_t got = ::recv(inner_.get(), piece.data(), piece.size(), MSG_DONTWAIT);
  if (got > 0) {
    has_moved_ = true;
    if (outer_.valid()) to_outer_.assign(piece.data(), static_cast<size_t>(got));
  } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
    inner_ended_ = true;
    to_inner_.clear();
  }
}

void Link::write_outer() {
  const TlsSession::Step step = session_->write(to_outer_);
  if (step.outcome == Outcome::kEnded) return lose_peer();
  if (step.outcome != Outcome::kDone) return;
  has_moved_ = true;
  to_outer_.erase(0, step.bytes);
}

void Link::lose_peer() {
  has_moved_ = true;
  to_outer_.clear();
  outer_.reset();
}

bool Link::is_bounded() const {
  return !is_started() || (!is_admitted_ && session_->bytes_received() >= bytes_max_);
}

uint32_t Link::outer_events() const {
  if (!outer_.valid()) return 0;
  if (!is_started()) return EPOLLRDHUP;
  uint32_t events = 0;
  // Where TLS has to write before it can read on, bytes that are there would wake for nothing.
  if (may_read() && !wants_write_) events |= EPOLLIN | EPOLLRDHUP;
  if (is_bounded()) events |= EPOLLRDHUP;
  if (!to_outer_.empty() || wants_write_) events |= EPOLLOUT;
  return events;
}

uint32_t Link::inner_events() const {
  if (!inner_.valid() || inner_ended_) return 0;
  uint32_t events = 0;
  if (to_outer_.empty()) events |= EPOLLIN;
  if (!to_inner_.empty()) events |= EPOLLOUT;
  return events;
}

}  // namespace trainyard::control

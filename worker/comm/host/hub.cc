#include "worker/comm/host/hub.h"

#include <algorithm>
#include <cerrno>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <utility>

#include "worker/comm/host/socket.h"

namespace trainyard::comm {
namespace {

using Clock = std::chrono::steady_clock;

/// A stranger that says nothing is dropped after this.
constexpr std::chrono::seconds kArrivalPatience{5};
/// Connections that are not accepted yet; beyond it the oldest is dropped. At the same moment each
/// rank of a world may connect twice, and hold a silent connection besides.
size_t arrivals_max(const HandshakeIdentity& identity) {
  return std::max<size_t>(1024, size_t{4} * identity.world_size);
}
/// Connections of each rank that are accepted and not yet asked for: sub-groups that this rank has
/// still to make.
constexpr size_t kAcceptedPerRankMax = 16;
constexpr size_t kRefusalsKept = 4;
/// How long connections are left in the backlog after one could not be accepted for want of a
/// descriptor or memory: poll would tell of them at once, again and again.
constexpr std::chrono::milliseconds kAcceptPause{100};

/// Sends to a new connection, which has room for these few bytes.
bool send_all(int fd, std::span<const std::byte> bytes) {
  return ::send(fd, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL) ==
         static_cast<ssize_t>(bytes.size());
}

}  // namespace

HubState::HubState(HandshakeIdentity identity, UniqueFd wake)
    : identity_(std::move(identity)), wake_(std::move(wake)) {}

void HubState::wake() {
  const uint64_t one = 1;
  // Fails only when the counter is full, and then the thread is awake already.
  (void)!::write(wake_.get(), &one, sizeof(one));
}

UniqueFd HubState::take(uint64_t group, int rank, ConnectionKind kind, Clock::time_point deadline) {
  const Key key{group, static_cast<uint32_t>(rank), static_cast<uint8_t>(kind)};
  std::unique_lock lock(mutex_);
  accepted_changed_.wait_until(lock, deadline, [&] { return accepted_.contains(key); });
  const auto found = accepted_.find(key);
  if (found == accepted_.end()) return {};
  UniqueFd fd = std::move(found->second);
  accepted_.erase(found);
  return fd;
}

std::string HubState::refusals() const {
  const std::lock_guard lock(mutex_);
  std::string text;
  for (const std::string& refusal : refusals_)
    text += "; " + refusal;
  return text;
}

uint64_t HubState::add(std::weak_ptr<Group> group, std::vector<UniqueFd> connections) {
  Slot slot;
  slot.group = std::move(group);
  for (UniqueFd& fd : connections) {
    Connection connection;
    connection.ended = !fd.valid();
    connection.fd = std::move(fd);
    slot.connections.push_back(std::move(connection));
  }
  uint64_t id = 0;
  {
    const std::lock_guard lock(mutex_);
    id = next_slot_++;
    slots_.emplace(id, std::move(slot));
  }
  wake();
  return id;
}

void HubState::remove(uint64_t slot) {
  {
    const std::lock_guard lock(mutex_);
    slots_.erase(slot);
  }
  wake();
}

void HubState::send(uint64_t slot, const ControlFrame& frame) {
  const std::vector<std::byte> bytes = encode(frame);
  const std::lock_guard lock(mutex_);
  const auto found = slots_.find(slot);
  if (found == slots_.end()) return;
  for (Connection& connection : found->second.connections) {
    if (!connection.fd.valid() || connection.ended) continue;
    const ssize_t put =
        ::send(connection.fd.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    // A peer that has not read megabytes of news is gone or stopped; half a frame would only
    // confuse it, a closed connection says enough.
    if (put != static_cast<ssize_t>(bytes.size())) ::shutdown(connection.fd.get(), SHUT_RDWR);
  }
}

Result<std::unique_ptr<Hub>> Hub::start(Listener listener, HandshakeIdentity identity) {
  UniqueFd wake(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!wake.valid()) return io_error("make an eventfd", errno);
  return std::unique_ptr<Hub>(new Hub(
      std::move(listener), std::make_shared<HubState>(std::move(identity), std::move(wake))));
}

Hub::Hub(Listener listener, std::shared_ptr<HubState> state)
    : listener_(std::move(listener)), state_(std::move(state)) {
  thread_ = std::thread([this] { thread_main(); });
}

Hub::~Hub() {
  {
    const std::lock_guard lock(state_->mutex_);
    state_->stopping_ = true;
  }
  state_->wake();
  thread_.join();
}

void Hub::thread_main() {
  std::vector<pollfd> entries;
  std::vector<Watched> watched;
  while (true) {
    const bool pausing = Clock::now() < accepts_after_;
    // poll passes over negative descriptors.
    entries.assign({{state_->wake_.get(), POLLIN, 0}, {pausing ? -1 : listener_.fd(), POLLIN, 0}});
    for (const Arrival& arrival : arrivals_)
      entries.push_back({arrival.fd.get(), POLLIN, 0});
    const size_t control_begin = entries.size();
    watched.clear();
    {
      const std::lock_guard lock(state_->mutex_);
      if (state_->stopping_) return;
      for (const auto& [id, slot] : state_->slots_) {
        for (size_t member = 0; member < slot.connections.size(); ++member) {
          const auto& connection = slot.connections[member];
          if (connection.ended) continue;
          entries.push_back({connection.fd.get(), POLLIN, 0});
          watched.push_back({id, static_cast<int>(member)});
        }
      }
    }
    int timeout_ms = arrivals_.empty() ? -1 : poll_timeout_ms(arrivals_.front().deadline, 5000);
    if (pausing) timeout_ms = poll_timeout_ms(accepts_after_, timeout_ms < 0 ? 5000 : timeout_ms);
    if (::poll(entries.data(), entries.size(), timeout_ms) < 0) continue;  // EINTR
    if (entries[0].revents != 0) {
      uint64_t count = 0;
      (void)!::read(state_->wake_.get(), &count, sizeof(count));
    }
    for (size_t i = 0; i < watched.size(); ++i) {
      if (entries[control_begin + i].revents != 0) read_control(watched[i]);
    }
    const auto now = Clock::now();
    std::erase_if(arrivals_,
                  [&](Arrival& arrival) { return !advance(arrival) || arrival.deadline <= now; });
    if (entries[1].revents != 0) accept_all();
  }
}

void Hub::accept_all() {
  while (true) {
    UniqueFd fd(::accept4(listener_.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd.valid()) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      // EAGAIN: no more. Out of descriptors: the peer waits in the backlog until there are some, or
      // names us in its error.
      if (errno != EAGAIN && errno != EWOULDBLOCK) accepts_after_ = Clock::now() + kAcceptPause;
      return;
    }
    set_no_delay(fd.get());
    Arrival arrival;
    arrival.fd = std::move(fd);
    arrival.deadline = Clock::now() + kArrivalPatience;
    if (!advance(arrival)) continue;
    if (arrivals_.size() >= arrivals_max(state_->identity_)) arrivals_.pop_front();
    arrivals_.push_back(std::move(arrival));
  }
}

bool Hub::advance(Arrival& arrival) {
  const auto wanted =
      static_cast<size_t>(arrival.challenged ? kProofBytes : kHelloBytes) - arrival.received_bytes;
  const ssize_t got = ::recv(arrival.fd.get(), arrival.received.data() + arrival.received_bytes,
                             wanted, MSG_DONTWAIT);
  if (got == 0) return false;
  if (got < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
  arrival.received_bytes += static_cast<size_t>(got);
  if (static_cast<size_t>(got) < wanted) return true;
  if (arrival.challenged) {
    if (is_proven(arrival)) {
      accept(arrival, *arrival.challenged);
    } else {
      refuse(arrival, Refusal::kProof,
             "a connection that says it is of rank " + std::to_string(arrival.challenged->rank) +
                 " does not prove that it has the key of this generation",
             arrival.challenged->nonce);
    }
    return false;
  }
  const auto hello = decode_hello(arrival.received, state_->identity_.version());
  if (!hello) {
    const bool other = hello.error().code == ErrorCode::kConflict;
    refuse(arrival, other ? Refusal::kVersion : Refusal::kMalformed, hello.error().message);
    return false;
  }
  if (!state_->identity_.key.empty()) return challenge(arrival, *hello);
  accept(arrival, *hello);
  return false;
}

bool Hub::challenge(Arrival& arrival, const Hello& hello) {
  Challenge challenge;
  // A nonce that is not random would let an old proof in: without randomness nobody is let in.
  if (::getrandom(challenge.nonce.data(), challenge.nonce.size(), 0) !=
      static_cast<ssize_t>(challenge.nonce.size())) {
    return false;
  }
  challenge.proof = prove(state_->identity_.key, Side::kAnswers, hello, challenge.nonce);
  arrival.challenged = hello;
  arrival.nonce = challenge.nonce;
  arrival.received_bytes = 0;
  arrival.deadline = Clock::now() + kArrivalPatience;
  return send_all(arrival.fd.get(), encode(challenge));
}

bool Hub::is_proven(const Arrival& arrival) const {
  const auto proof = decode_proof(
      std::span<const std::byte>(arrival.received).first<static_cast<size_t>(kProofBytes)>());
  return proof && equal_in_constant_time(*proof, prove(state_->identity_.key, Side::kConnects,
                                                       *arrival.challenged, arrival.nonce));
}

void Hub::accept(Arrival& arrival, const Hello& hello) {
  Judgement verdict = judge(hello, state_->identity_);
  const HubState::Key key{hello.group, hello.rank, static_cast<uint8_t>(hello.channel)};
  {
    const std::lock_guard lock(state_->mutex_);
    const size_t accepted_max = kAcceptedPerRankMax * state_->identity_.world_size;
    if (verdict.refusal == Refusal::kNone && state_->accepted_.contains(key)) {
      verdict = {Refusal::kTaken, "it is connected already for this group"};
    } else if (verdict.refusal == Refusal::kNone && !has_room(accepted_max)) {
      verdict = {Refusal::kFull,
                 std::to_string(accepted_max) + " connections wait to be asked for"};
    }
    if (verdict.refusal == Refusal::kNone) {
      Welcome welcome;
      welcome.version = hello.version;
      welcome.nonce = hello.nonce;
      welcome.rank = state_->identity_.rank;
      if (!send_all(arrival.fd.get(), encode(welcome))) return;
      state_->accepted_[key] = std::move(arrival.fd);
      state_->accepted_changed_.notify_all();
      return;
    }
  }
  refuse(arrival, verdict.refusal,
         "rank " + std::to_string(state_->identity_.rank) + " refuses a connection from rank " +
             std::to_string(hello.rank) + ": " + verdict.why,
         hello.nonce);
}

bool Hub::has_room(size_t accepted_max) {
  if (state_->accepted_.size() < accepted_max) return true;
  // A member may have left in order before this rank asks for its connection, so those that have
  // closed are kept as long as there is room.
  std::erase_if(state_->accepted_, [](const auto& entry) {
    pollfd closed{entry.second.get(), POLLRDHUP, 0};
    return ::poll(&closed, 1, 0) > 0;
  });
  return state_->accepted_.size() < accepted_max;
}

void Hub::refuse(const Arrival& arrival, Refusal refusal, const std::string& why, uint64_t nonce) {
  Welcome welcome;
  welcome.version = state_->identity_.version();
  welcome.refusal = refusal;
  welcome.nonce = nonce;
  welcome.rank = UINT32_MAX;
  (void)send_all(arrival.fd.get(), encode(welcome));
  const std::lock_guard lock(state_->mutex_);
  state_->refusals_.push_back(why);
  if (state_->refusals_.size() > kRefusalsKept) state_->refusals_.pop_front();
}

void Hub::read_control(const Watched& watched) {
  std::shared_ptr<Group> group;
  std::vector<ControlFrame> frames;
  std::string ended;
  {
    const std::lock_guard lock(state_->mutex_);
    const auto slot = state_->slots_.find(watched.slot);
    if (slot == state_->slots_.end()) return;
    auto& connection = slot->second.connections[static_cast<size_t>(watched.member)];
    if (connection.ended) return;
    ended = receive(connection, frames);
    connection.ended = !ended.empty();
    if (connection.said_bye) ended.clear();
    group = slot->second.group.lock();
  }
  if (!group) return;
  for (const ControlFrame& frame : frames) {
    switch (frame.kind) {
      case ControlKind::kAbort:
        group->on_abort(watched.member, frame.failure);
        break;
      case ControlKind::kBye:
        group->on_bye(watched.member);
        break;
      case ControlKind::kWaiting:
        group->on_waiting(watched.member, frame.waiting);
        break;
      case ControlKind::kSharedMemory:
      case ControlKind::kMapped:
        break;  // late words of a set-up that is over
    }
  }
  if (!ended.empty()) group->on_lost(watched.member, ended);
}

std::string Hub::receive(HubState::Connection& connection, std::vector<ControlFrame>& frames) {
  constexpr size_t kFrameMax = static_cast<size_t>(kControlHeaderBytes + kControlPayloadBytesMax);
  std::vector<std::byte>& buffer = connection.received;
  while (true) {
    const size_t had = buffer.size();
    buffer.resize(kFrameMax);
    const ssize_t got =
        ::recv(connection.fd.get(), buffer.data() + had, kFrameMax - had, MSG_DONTWAIT);
    const int error_number = errno;
    buffer.resize(had + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (got == 0) return "its process ended or closed the connection without a goodbye";
    if (got < 0) {
      if (error_number == EAGAIN || error_number == EWOULDBLOCK) return {};
      if (error_number == EINTR) continue;
      return io_error("its control connection", error_number).message;
    }
    while (buffer.size() >= static_cast<size_t>(kControlHeaderBytes)) {
      const std::span<const std::byte> all(buffer);
      const auto payload =
          control_payload_bytes(all.first<static_cast<size_t>(kControlHeaderBytes)>());
      if (!payload) return payload.error().message;
      const auto frame_bytes = static_cast<size_t>(kControlHeaderBytes + *payload);
      if (buffer.size() < frame_bytes) break;
      auto frame = decode_control(all.first(frame_bytes));
      if (!frame) return frame.error().message;
      connection.said_bye = connection.said_bye || frame->kind == ControlKind::kBye;
      frames.push_back(*std::move(frame));
      buffer.erase(buffer.begin(), buffer.begin() + static_cast<std::ptrdiff_t>(frame_bytes));
    }
  }
}

}  // namespace trainyard::comm

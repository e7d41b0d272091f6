#include "worker/comm/host/dialer.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <poll.h>
#include <string>

namespace trainyard::comm {
namespace {

using Clock = std::chrono::steady_clock;

/// How long the others are dialled on after one has failed.
constexpr std::chrono::seconds kGrace{1};

/// How far one connection is.
struct Progress {
  enum class State : uint8_t { kConnecting, kChallenge, kWelcome, kDone, kFailed };
  State state = State::kConnecting;
  std::array<std::byte, static_cast<size_t>(kChallengeBytes)> answer{};
  size_t received = 0;

  bool open() const { return state != State::kDone && state != State::kFailed; }
};

Error lost_error(const Dial& dial, const std::string& why) {
  return {ErrorCode::kPeerLost, "connecting to rank " + std::to_string(dial.rank) + " at " +
                                    to_string(dial.address) + ": " + why};
}

Status start(Dial& dial) {
  dial.fd.reset(::socket(dial.address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!dial.fd.valid()) return io_error("make a socket", errno);
  set_no_delay(dial.fd.get());
  if (::connect(dial.fd.get(), dial.address.raw(), dial.address.length) == 0) return {};
  if (errno == EINPROGRESS || errno == EINTR) return {};
  if (means_peer_gone(errno)) return lost_error(dial, io_error("connect", errno).message);
  return io_error("connect to rank " + std::to_string(dial.rank) + " at " + to_string(dial.address),
                  errno);
}

Status say_hello(Dial& dial) {
  int error_number = 0;
  socklen_t length = sizeof(error_number);
  if (::getsockopt(dial.fd.get(), SOL_SOCKET, SO_ERROR, &error_number, &length) != 0) {
    error_number = errno;
  }
  if (error_number != 0) {
    return lost_error(dial, io_error("connect", error_number).message +
                                (error_number == ECONNREFUSED ? " (its process is gone)" : ""));
  }
  // A new connection has room for these few bytes.
  const auto wire = encode(dial.hello);
  if (::send(dial.fd.get(), wire.data(), wire.size(), MSG_DONTWAIT | MSG_NOSIGNAL) !=
      static_cast<ssize_t>(wire.size())) {
    return lost_error(dial, io_error("send the handshake", errno).message);
  }
  return {};
}

std::string who(const Dial& dial) {
  return "rank " + std::to_string(dial.rank) + " at " + to_string(dial.address);
}

/// What a refusal says, and of what generation this side is; the other's values are in its own log.
Error refused(const Dial& dial, Refusal refusal) {
  return {ErrorCode::kConflict,
          who(dial) + " refuses the connection of rank " + std::to_string(dial.hello.rank) +
              " of generation " + std::to_string(dial.hello.generation) + ": " +
              std::string(describe(refusal)) + " (reason " +
              std::to_string(static_cast<uint32_t>(refusal)) + "); its own error has the values"};
}

/// A peer without a key refuses at once, with an answer in place of the challenge.
bool is_open_refusal(std::span<const std::byte> answer) {
  const auto welcome =
      decode_welcome(answer.first<static_cast<size_t>(kWelcomeBytes)>(), kOpenHandshake);
  return welcome && welcome->refusal != Refusal::kNone;
}

Status prove_key(Dial& dial, std::span<const std::byte> key, Progress& progress) {
  const auto challenge = decode_challenge(progress.answer);
  if (!challenge) return challenge.error().with_context(who(dial));
  const Hash256 expected = prove(key, Side::kAnswers, dial.hello, challenge->nonce);
  if (!equal_in_constant_time(challenge->proof, expected)) {
    return Error{ErrorCode::kConflict, who(dial) +
                                           " does not prove that it has the key of generation " +
                                           std::to_string(dial.hello.generation) +
                                           ": it is not a rank of that generation"};
  }
  const auto proof = encode_proof(prove(key, Side::kConnects, dial.hello, challenge->nonce));
  if (::send(dial.fd.get(), proof.data(), proof.size(), MSG_DONTWAIT | MSG_NOSIGNAL) !=
      static_cast<ssize_t>(proof.size())) {
    return lost_error(dial, io_error("send the proof of the key", errno).message);
  }
  progress.state = Progress::State::kWelcome;
  progress.received = 0;
  return {};
}

Status judge_answer(Dial& dial, Progress& progress) {
  const std::span<const std::byte> answer(progress.answer);
  const auto welcome =
      decode_welcome(answer.first<static_cast<size_t>(kWelcomeBytes)>(), dial.hello.version);
  if (!welcome) return welcome.error().with_context(who(dial));
  if (welcome->refusal != Refusal::kNone) return refused(dial, welcome->refusal);
  if (welcome->nonce != dial.hello.nonce || welcome->rank != static_cast<uint32_t>(dial.rank)) {
    return Error{ErrorCode::kConflict,
                 who(dial) + ": the answer to the handshake is that of rank " +
                     std::to_string(welcome->rank) + " to another connection"};
  }
  progress.state = Progress::State::kDone;
  return {};
}

Status advance(Dial& dial, std::span<const std::byte> key, Progress& progress) {
  using State = Progress::State;
  if (progress.state == State::kConnecting) {
    progress.state = key.empty() ? State::kWelcome : State::kChallenge;
    return say_hello(dial);
  }
  while (progress.state != State::kDone) {
    const bool challenged = progress.state == State::kChallenge;
    const auto wanted = static_cast<size_t>(challenged ? kChallengeBytes : kWelcomeBytes);
    const ssize_t got = ::recv(dial.fd.get(), progress.answer.data() + progress.received,
                               wanted - progress.received, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return {};
    if (got < 0) return lost_error(dial, io_error("await the handshake", errno).message);
    if (got > 0) progress.received += static_cast<size_t>(got);
    const bool whole = progress.received == wanted;
    if (challenged && !whole && progress.received >= static_cast<size_t>(kWelcomeBytes) &&
        is_open_refusal(progress.answer)) {
      return refused(dial, Refusal::kVersion);
    }
    if (got == 0) return lost_error(dial, "it closed the connection instead of answering");
    if (!whole) continue;
    TRAINYARD_TRY(challenged ? prove_key(dial, key, progress) : judge_answer(dial, progress));
  }
  return {};
}

}  // namespace

Status dial_all(std::vector<Dial>& dials, std::span<const std::byte> key,
                Clock::time_point deadline, std::vector<int>& lost) {
  const auto begin = Clock::now();
  std::vector<Progress> progress(dials.size());
  Status failed;
  // The first failure is the one that is told. The others are dialled on for a moment, so that they
  // can be told too.
  const auto fail = [&](size_t i, Error error) {
    progress[i].state = Progress::State::kFailed;
    // Who is lost as well is named too: it may be the one whose loss ended the other.
    if (error.code == ErrorCode::kPeerLost) lost.push_back(dials[i].rank);
    if (!failed) return;
    failed = std::move(error);
    deadline = std::min(deadline, Clock::now() + kGrace);
  };
  for (size_t i = 0; i < dials.size(); ++i) {
    if (auto status = start(dials[i]); !status) fail(i, std::move(status).error());
  }
  while (Clock::now() < deadline) {
    std::vector<pollfd> entries;
    std::vector<size_t> open;
    for (size_t i = 0; i < dials.size(); ++i) {
      if (!progress[i].open()) continue;
      const bool connecting = progress[i].state == Progress::State::kConnecting;
      entries.push_back({dials[i].fd.get(), static_cast<short>(connecting ? POLLOUT : POLLIN), 0});
      open.push_back(i);
    }
    if (open.empty()) break;
    if (::poll(entries.data(), entries.size(), poll_timeout_ms(deadline, 60'000)) < 0) continue;
    for (size_t k = 0; k < open.size(); ++k) {
      if (entries[k].revents == 0) continue;
      const size_t i = open[k];
      if (auto status = advance(dials[i], key, progress[i]); !status)
        fail(i, std::move(status).error());
    }
  }
  std::sort(lost.begin(), lost.end());
  lost.erase(std::unique(lost.begin(), lost.end()), lost.end());
  if (!failed && lost.size() > 1 && failed.error().code == ErrorCode::kPeerLost)
    failed = failed.error().with_context(describe_ranks(lost) + " are lost");
  std::vector<int> silent;
  for (size_t i = 0; i < dials.size(); ++i) {
    if (progress[i].open()) silent.push_back(dials[i].rank);
    // What is no connection yet must not be taken for one.
    if (progress[i].state != Progress::State::kDone) dials[i].fd.reset();
  }
  if (!failed || silent.empty()) return failed;
  silent.erase(std::unique(silent.begin(), silent.end()), silent.end());
  lost = silent;
  const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin);
  return Error{ErrorCode::kPeerLost, "meeting the peers: " + describe_ranks(lost) +
                                         " did not answer the handshake within " +
                                         std::to_string(waited.count()) + " ms"};
}

}  // namespace trainyard::comm

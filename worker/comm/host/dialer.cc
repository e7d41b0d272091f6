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
  enum class State : uint8_t { kConnecting, kWelcome, kText, kDone, kFailed };
  State state = State::kConnecting;
  std::array<std::byte, static_cast<size_t>(kWelcomeBytes + kRefusalTextBytesMax)> answer{};
  int64_t received = 0;
  int64_t wanted = kWelcomeBytes;

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

Status judge_answer(Dial& dial, Progress& progress) {
  const std::string who = "rank " + std::to_string(dial.rank) + " at " + to_string(dial.address);
  const std::span<const std::byte> answer(progress.answer);
  const auto welcome = decode_welcome(answer.first<static_cast<size_t>(kWelcomeBytes)>());
  if (!welcome) return welcome.error().with_context(who);
  if (!welcome->accepted && progress.state == Progress::State::kWelcome) {
    progress.state = Progress::State::kText;
    progress.wanted = kWelcomeBytes + welcome->text_bytes;
    if (progress.received < progress.wanted) return {};
  }
  if (!welcome->accepted) {
    return Error{ErrorCode::kConflict,
                 std::string(reinterpret_cast<const char*>(answer.data() + kWelcomeBytes),
                             welcome->text_bytes)};
  }
  if (welcome->nonce != dial.hello.nonce || welcome->rank != static_cast<uint32_t>(dial.rank)) {
    return Error{ErrorCode::kConflict, who + ": the answer to the handshake is that of rank " +
                                           std::to_string(welcome->rank) +
                                           " to another connection"};
  }
  progress.state = Progress::State::kDone;
  return {};
}

Status advance(Dial& dial, Progress& progress) {
  if (progress.state == Progress::State::kConnecting) {
    progress.state = Progress::State::kWelcome;
    return say_hello(dial);
  }
  while (progress.state != Progress::State::kDone) {
    const ssize_t got =
        ::recv(dial.fd.get(), progress.answer.data() + progress.received,
               static_cast<size_t>(progress.wanted - progress.received), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return {};
    if (got < 0) return lost_error(dial, io_error("await the handshake", errno).message);
    if (got == 0) return lost_error(dial, "it closed the connection instead of answering");
    progress.received += got;
    if (progress.received == progress.wanted) TRAINYARD_TRY(judge_answer(dial, progress));
  }
  return {};
}

}  // namespace

Status dial_all(std::vector<Dial>& dials, Clock::time_point deadline, std::vector<int>& lost) {
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
      if (auto status = advance(dials[i], progress[i]); !status) fail(i, std::move(status).error());
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

#include "worker/comm/host/shared_memory_setup.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <poll.h>
#include <string>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/hash/hash.h"
#include "worker/comm/host/socket.h"

namespace trainyard::comm {
namespace {

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;

/// How long who gave up may take to say why.
constexpr std::chrono::seconds kWordsPatience{1};
constexpr char kSetUp[] = "handing out shared memory";

/// The abstract socket address of a name: a zero byte, then the name (unix(7)).
socklen_t abstract_address(const std::string& name, sockaddr_un& address) {
  address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

Error lost_during(const GroupIdentity& identity, int member, const Error& error) {
  const std::string what = std::string(kSetUp) + ": rank " +
                           std::to_string(identity.rank_of(member)) + ": " + error.message;
  return {error.code == ErrorCode::kDeadline ? ErrorCode::kPeerLost : error.code, what};
}

/// The next frame of a member, which must be of `kind`.
Result<ControlFrame> expect(const GroupIdentity& identity, int member, int fd, ControlKind kind,
                            Deadline deadline) {
  auto frame = read_control_frame(fd, deadline);
  if (!frame) return lost_during(identity, member, frame.error());
  if (frame->kind == ControlKind::kAbort) {
    return gave_up(identity.rank_of(member), frame->failure.error).with_context(kSetUp);
  }
  if (frame->kind != kind) {
    return lost_during(identity, member,
                       {ErrorCode::kPeerLost,
                        "control frame of kind " + std::to_string(static_cast<int>(frame->kind)) +
                            ", wanted " + std::to_string(static_cast<int>(kind))});
  }
  return frame;
}

/// Why a member does not go on, of whom `met` is all that is known. Who gives up for another rank
/// says so, the leader only after it has closed its socket.
Error words_of(const GroupIdentity& identity, int member, int fd, const Error& met) {
  const auto frame = read_control_frame(fd, Clock::now() + kWordsPatience);
  if (frame && frame->kind == ControlKind::kAbort) {
    return gave_up(identity.rank_of(member), frame->failure.error).with_context(kSetUp);
  }
  return lost_during(identity, member, met);
}

Result<UniqueFd> listen_abstract(std::string& name) {
  std::array<uint8_t, 16> random{};
  if (::getrandom(random.data(), random.size(), 0) != static_cast<ssize_t>(random.size())) {
    return io_error("get random bytes", errno);
  }
  name = "trainyard-comm-" + to_hex(random);
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return io_error("make a Unix socket", errno);
  sockaddr_un address;
  const socklen_t length = abstract_address(name, address);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      ::listen(fd.get(), 4096) != 0) {
    return io_error("listen on an abstract Unix socket", errno);
  }
  return fd;
}

/// Accepts one process and sends it `memory`, if it is of this user. Everybody of this machine can
/// find the socket: strangers get nothing, and neither they nor one that is gone again disturb the
/// others. A member that was lost so is missed on its control connection.
Status hand_out(int listener, int memory) {
  const UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
  if (!fd.valid()) {
    const bool gone = errno == ECONNABORTED || errno == EAGAIN || errno == EINTR;
    return gone ? Status() : Status(io_error("accept on a Unix socket", errno));
  }
  ucred peer{};
  socklen_t length = sizeof(peer);
  if (::getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) {
    return io_error("ask who connected", errno);
  }
  if (peer.uid != ::geteuid()) return {};
  char byte = 1;
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &memory, sizeof(int));
  (void)::sendmsg(fd.get(), &message, MSG_NOSIGNAL);
  return {};
}

Result<UniqueFd> fetch(const std::string& name, Deadline deadline) {
  sockaddr_un address;
  if (name.empty() || name.size() >= sizeof(address.sun_path) - 1) {
    return Error{ErrorCode::kPeerLost,
                 "a socket name of " + std::to_string(name.size()) + " bytes"};
  }
  const UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return io_error("make a Unix socket", errno);
  const socklen_t length = abstract_address(name, address);
  // Connecting to a Unix socket does not wait: the backlog has room for every rank of a host.
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    Error error = io_error("connect to the rank that shares its memory", errno);
    if (means_peer_gone(errno)) error.code = ErrorCode::kPeerLost;
    return error;
  }
  pollfd entry{fd.get(), POLLIN, 0};
  while (::poll(&entry, 1, poll_timeout_ms(deadline, 60'000)) <= 0) {
    if (std::chrono::steady_clock::now() >= deadline) {
      return Error{ErrorCode::kDeadline, "it did not hand out its memory in time"};
    }
  }
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  if (::recvmsg(fd.get(), &message, MSG_CMSG_CLOEXEC) != 1) {
    return Error{ErrorCode::kPeerLost, "it closed the connection instead of handing out memory"};
  }
  // So the system says that this process has no descriptor left (unix(7)).
  if ((message.msg_flags & MSG_CTRUNC) != 0) return io_error("take over shared memory", EMFILE);
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS ||
      header->cmsg_len != CMSG_LEN(sizeof(int))) {
    return Error{ErrorCode::kPeerLost, "no descriptor came with the message"};
  }
  int memory = -1;
  std::memcpy(&memory, CMSG_DATA(header), sizeof(int));
  return UniqueFd(memory);
}

Status serve(const GroupIdentity& identity, const std::vector<UniqueFd>& control, int memory,
             Deadline deadline) {
  ControlFrame frame;
  frame.kind = ControlKind::kSharedMemory;
  TRAINYARD_ASSIGN(const UniqueFd listener, listen_abstract(frame.address));
  const auto bytes = encode(frame);
  for (int member = 1; member < identity.size(); ++member) {
    const int fd = control[static_cast<size_t>(member)].get();
    const auto sent = write_exactly(fd, bytes, deadline);
    if (!sent) return words_of(identity, member, fd, sent.error());
  }
  // Members answer on their control connections; until all have, hand the memory to who asks.
  std::vector<bool> mapped(static_cast<size_t>(identity.size()), false);
  mapped[0] = true;
  while (true) {
    std::vector<pollfd> entries{{listener.get(), POLLIN, 0}};
    std::vector<int> members;
    for (int member = 1; member < identity.size(); ++member) {
      if (mapped[static_cast<size_t>(member)]) continue;
      entries.push_back({control[static_cast<size_t>(member)].get(), POLLIN, 0});
      members.push_back(member);
    }
    if (members.empty()) return {};
    const int ready = ::poll(entries.data(), entries.size(), poll_timeout_ms(deadline, 60'000));
    if (ready < 0 && errno != EINTR) return io_error("poll while sharing memory", errno);
    if (ready <= 0) {
      if (std::chrono::steady_clock::now() < deadline) continue;
      std::vector<int> ranks;
      for (const int member : members)
        ranks.push_back(identity.rank_of(member));
      return Error{ErrorCode::kPeerLost, std::string(kSetUp) + ": " + describe_ranks(ranks) +
                                             " did not map the memory in time"};
    }
    if (entries[0].revents != 0) TRAINYARD_TRY(hand_out(listener.get(), memory));
    for (size_t i = 0; i < members.size(); ++i) {
      if (entries[i + 1].revents == 0) continue;
      const int fd = entries[i + 1].fd;
      TRAINYARD_TRY(expect(identity, members[i], fd, ControlKind::kMapped, deadline));
      mapped[static_cast<size_t>(members[i])] = true;
    }
  }
}

}  // namespace

Result<ControlFrame> read_control_frame(int fd, Deadline deadline) {
  std::vector<std::byte> bytes(kControlHeaderBytes);
  TRAINYARD_TRY(read_exactly(fd, bytes, deadline));
  TRAINYARD_ASSIGN(const int64_t payload,
                   control_payload_bytes(std::span<const std::byte, kControlHeaderBytes>(
                       bytes.data(), kControlHeaderBytes)));
  bytes.resize(static_cast<size_t>(kControlHeaderBytes + payload));
  TRAINYARD_TRY(read_exactly(fd, std::span(bytes).subspan(static_cast<size_t>(kControlHeaderBytes)),
                             deadline));
  return decode_control(bytes);
}

Result<std::shared_ptr<MemorySegment>> share_memory(const GroupIdentity& identity,
                                                    const std::vector<UniqueFd>& control,
                                                    Deadline deadline) {
  if (identity.member == 0) {
    UniqueFd memory;
    TRAINYARD_ASSIGN(auto segment, MemorySegment::create_shared(identity.size(), memory));
    TRAINYARD_TRY(serve(identity, control, memory.get(), deadline));
    return segment;
  }
  const int leader = control[0].get();
  TRAINYARD_ASSIGN(const ControlFrame frame,
                   expect(identity, 0, leader, ControlKind::kSharedMemory, deadline));
  auto memory = fetch(frame.address, deadline);
  if (!memory) {
    if (memory.error().code != ErrorCode::kPeerLost)
      return lost_during(identity, 0, memory.error());
    return words_of(identity, 0, leader, memory.error());
  }
  TRAINYARD_ASSIGN(auto segment, MemorySegment::map_shared(identity.size(), *memory));
  ControlFrame answer;
  answer.kind = ControlKind::kMapped;
  const auto told = write_exactly(leader, encode(answer), deadline);
  if (!told) return words_of(identity, 0, leader, told.error());
  return segment;
}

}  // namespace trainyard::comm

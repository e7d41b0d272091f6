#include "worker/comm/host/tcp_transport.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <poll.h>
#include <string>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "worker/comm/host/socket.h"

namespace trainyard::comm {
namespace {

/// Moved by one call at most, so that both directions and all peers take turns.
constexpr int64_t kCallBytes = int64_t{1} << 20;
/// What a reduction takes from a socket at a time: stays in the second-level cache.
constexpr int64_t kStagingBytes = 128 * 1024;

}  // namespace

Result<std::shared_ptr<TcpTransport>> TcpTransport::make(const GroupIdentity& identity,
                                                         std::vector<UniqueFd> connections,
                                                         std::chrono::nanoseconds spin) {
  UniqueFd wake(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!wake.valid()) return io_error("make an eventfd", errno);
  return std::shared_ptr<TcpTransport>(
      new TcpTransport(identity, std::move(connections), spin, std::move(wake)));
}

TcpTransport::TcpTransport(const GroupIdentity& identity, std::vector<UniqueFd> connections,
                           std::chrono::nanoseconds spin, UniqueFd wake)
    : Transport(identity),
      connections_(std::move(connections)),
      spin_(spin),
      wake_(std::move(wake)),
      staging_(std::make_unique_for_overwrite<std::byte[]>(kStagingBytes)),
      carries_(connections_.size()) {
  for (const UniqueFd& fd : connections_) {
    if (!fd.valid()) continue;
    set_no_delay(fd.get());
    if (stays_on_host(fd.get())) bound_local_buffer(fd.get());
  }
}

Result<Transport::Moved> TcpTransport::advance(Transfer& transfer, int64_t sendable) {
  return transfer.sends() ? send(transfer, sendable) : receive(transfer);
}

Result<Transport::Moved> TcpTransport::send(Transfer& transfer, int64_t sendable) {
  iovec parts[2];
  int count = 0;
  if (transfer.header_moved < kHeaderBytes) {
    parts[count++] = {transfer.header.data() + transfer.header_moved,
                      static_cast<size_t>(kHeaderBytes - transfer.header_moved)};
  }
  const int64_t payload = std::min(sendable - transfer.payload_moved, kCallBytes);
  if (payload > 0) {
    parts[count++] = {transfer.data + transfer.payload_moved, static_cast<size_t>(payload)};
  }
  if (count == 0) return Moved::kNothing;
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = static_cast<size_t>(count);
  const int fd = connections_[static_cast<size_t>(transfer.peer)].get();
  const ssize_t put = ::sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (put < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return Moved::kNothing;
    if (means_peer_gone(errno)) return Moved::kPeerClosed;
    return io_error("send to rank " + std::to_string(identity_.rank_of(transfer.peer)), errno);
  }
  const int64_t of_header = std::min<int64_t>(put, kHeaderBytes - transfer.header_moved);
  transfer.header_moved += of_header;
  transfer.payload_moved += put - of_header;
  return Moved::kSomething;
}

Result<Transport::Moved> TcpTransport::receive(Transfer& transfer) {
  const Carry& carry = carries_[static_cast<size_t>(transfer.peer)];
  iovec parts[2];
  int count = 0;
  if (transfer.header_moved < kHeaderBytes) {
    parts[count++] = {transfer.found.data() + transfer.header_moved,
                      static_cast<size_t>(kHeaderBytes - transfer.header_moved)};
  }
  // The payload may be taken along before the header is checked: never more of it than is due.
  const bool reduces = transfer.kind == Transfer::Kind::kReduce;
  const int64_t carried = reduces ? carry.count : 0;
  const int64_t room = reduces ? kStagingBytes - carried : kCallBytes;
  const int64_t payload = std::min(transfer.bytes - transfer.payload_moved - carried, room);
  if (payload > 0) {
    std::byte* into = reduces ? staging_.get() + carried : transfer.data + transfer.payload_moved;
    parts[count++] = {into, static_cast<size_t>(payload)};
  }
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = static_cast<size_t>(count);
  const int fd = connections_[static_cast<size_t>(transfer.peer)].get();
  const ssize_t got = ::recvmsg(fd, &message, MSG_DONTWAIT);
  if (got == 0) return Moved::kPeerClosed;
  if (got < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return Moved::kNothing;
    if (means_peer_gone(errno)) return Moved::kPeerClosed;
    return io_error("receive from rank " + std::to_string(identity_.rank_of(transfer.peer)), errno);
  }
  const int64_t of_header = std::min<int64_t>(got, kHeaderBytes - transfer.header_moved);
  transfer.header_moved += of_header;
  if (of_header > 0 && transfer.header_moved == kHeaderBytes) TRAINYARD_TRY(accept(transfer));
  if (got > of_header) take_payload(transfer, got - of_header);
  return Moved::kSomething;
}

void TcpTransport::take_payload(Transfer& transfer, int64_t received) {
  if (transfer.kind != Transfer::Kind::kReduce) {
    transfer.payload_moved += received;
    return;
  }
  Carry& carry = carries_[static_cast<size_t>(transfer.peer)];
  std::memcpy(staging_.get(), carry.bytes, static_cast<size_t>(carry.count));
  const int64_t available = carry.count + received;
  const int64_t elements = available / transfer.element_bytes;
  const int64_t whole = elements * transfer.element_bytes;
  transfer.combine(transfer.data + transfer.payload_moved, staging_.get(), elements);
  transfer.payload_moved += whole;
  carry.count = available - whole;
  std::memcpy(carry.bytes, staging_.get() + whole, static_cast<size_t>(carry.count));
}

void TcpTransport::wait(std::span<Transfer* const> pending, std::chrono::nanoseconds at_most) {
  std::vector<pollfd> entries{{wake_.get(), POLLIN, 0}};
  for (const Transfer* transfer : pending) {
    const int fd = connections_[static_cast<size_t>(transfer->peer)].get();
    const auto events = static_cast<short>(transfer->sends() ? POLLOUT : POLLIN);
    entries.push_back({fd, events, 0});
  }
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(at_most).count();
  const int timeout_ms = static_cast<int>(std::clamp<int64_t>(ms, 0, 60'000));
  if (::poll(entries.data(), entries.size(), timeout_ms) > 0 && entries[0].revents != 0) {
    uint64_t count = 0;
    (void)!::read(wake_.get(), &count, sizeof(count));
  }
}

void TcpTransport::wake() {
  const uint64_t one = 1;
  // Fails only when the counter is full, and then a wait returns at once anyway.
  (void)!::write(wake_.get(), &one, sizeof(one));
}

}  // namespace trainyard::comm

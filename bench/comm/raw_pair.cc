#include "bench/comm/raw_pair.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <poll.h>
#include <sys/socket.h>
#include <utility>

#include "bench/comm/measure.h"
#include "bench/comm/pattern.h"
#include "worker/comm/formulas.h"
#include "worker/comm/host/reduce.h"
#include "worker/comm/host/socket.h"

namespace trainyard::bench {
namespace {

using Clock = std::chrono::steady_clock;

/// What is added up at a time: stays in the second-level cache.
constexpr int64_t kStagingBytes = 128 * 1024;
constexpr int64_t kCallBytes = int64_t{1} << 20;
/// As the engine's sockets do where ranks do not outnumber cores.
constexpr std::chrono::microseconds kSpin{20};
constexpr int kPatienceMs = 30'000;

}  // namespace

Status RawPair::exchange(const std::byte* out, int64_t out_bytes, std::byte* in, int64_t in_bytes,
                         const Case* one) {
  const int fd = connection_.get();
  const int64_t element = one != nullptr ? size_of(one->dtype) : 1;
  const comm::Combine combine =
      one != nullptr ? comm::combine_of(one->dtype, one->reduce) : nullptr;
  int64_t sent = 0;
  int64_t received = 0;
  int64_t carried = 0;  // bytes of an element whose end has not come, at the front of staging_
  auto idle_since = Clock::time_point::max();
  while (sent < out_bytes || received < in_bytes) {
    bool moved = false;
    if (sent < out_bytes) {
      const auto bytes = static_cast<size_t>(std::min(out_bytes - sent, kCallBytes));
      const ssize_t put = ::send(fd, out + sent, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (put < 0 && errno != EAGAIN) return io_error("send", errno);
      moved = put > 0;
      sent += std::max<ssize_t>(put, 0);
    }
    if (received < in_bytes) {
      const int64_t room = combine != nullptr ? kStagingBytes : kCallBytes;
      const auto bytes = static_cast<size_t>(std::min(in_bytes - received, room) - carried);
      std::byte* into = combine != nullptr ? staging_.data() + carried : in + received;
      const ssize_t got = ::recv(fd, into, bytes, MSG_DONTWAIT);
      if (got == 0) return Error{ErrorCode::kPeerLost, "the other process is gone"};
      if (got < 0 && errno != EAGAIN) return io_error("receive", errno);
      moved = moved || got > 0;
      if (combine == nullptr) {
        received += std::max<ssize_t>(got, 0);
      } else if (got > 0) {
        const int64_t whole = (carried + got) / element;
        combine(in + received, staging_.data(), whole);
        received += whole * element;
        const int64_t rest = carried + got - whole * element;
        std::copy_n(staging_.begin() + whole * element, rest, staging_.begin());
        carried = rest;
      }
    }
    if (moved) {
      idle_since = Clock::time_point::max();
      continue;
    }
    if (idle_since == Clock::time_point::max()) idle_since = Clock::now();
    if (Clock::now() - idle_since < kSpin) continue;
    const int events = (received < in_bytes ? POLLIN : 0) | (sent < out_bytes ? POLLOUT : 0);
    pollfd entry{fd, static_cast<short>(events), 0};
    if (::poll(&entry, 1, kPatienceMs) == 0) {
      return Error{ErrorCode::kDeadline, "the other process has been silent for 30 s"};
    }
  }
  return {};
}

Status RawPair::all_reduce(const Case& one, std::byte* data) {
  const int64_t bytes = one.count() * size_of(one.dtype);
  if (bytes <= comm::kDirectAllReduceBytesOfTwo) {
    std::vector<std::byte>& theirs = received_;
    theirs.resize(static_cast<size_t>(bytes));
    TRAINYARD_TRY(exchange(data, bytes, theirs.data(), bytes, nullptr));
    comm::combine_of(one.dtype, one.reduce)(data, theirs.data(), one.count());
    return {};
  }
  const int64_t half = one.count() / 2 * size_of(one.dtype);
  const int64_t begins[] = {0, half};
  const int64_t sizes[] = {half, bytes - half};
  std::byte* own = data + begins[rank_];
  std::byte* other = data + begins[1 - rank_];
  TRAINYARD_TRY(exchange(other, sizes[1 - rank_], own, sizes[rank_], &one));
  return exchange(own, sizes[rank_], other, sizes[1 - rank_], nullptr);
}

Result<Sample> RawPair::measure(const Case& one) {
  if (one.op != comm::Operation::kAllReduce) {
    return Error{ErrorCode::kInvalidConfig, "the raw pair has all_reduce only"};
  }
  staging_.resize(static_cast<size_t>(kStagingBytes));
  int64_t wrong = 0;
  auto data = pattern_of(rank_, one.count(), one.dtype, one.reduce);
  if (one.check) {
    TRAINYARD_TRY(all_reduce(one, data.data()));
    const auto wanted = combined_pattern(2, one.count(), one.dtype, one.reduce);
    wrong = differing_elements(data.data(), wanted.data(), one.count(), one.dtype);
  }
  std::fill(data.begin(), data.end(), std::byte{0});
  TRAINYARD_ASSIGN(Sample sample, time_calls(
                                      one.warm_up, one.iterations, [] { return Status(); },
                                      [&] { return all_reduce(one, data.data()); }));
  const int64_t bytes = one.count() * size_of(one.dtype);
  sample.bytes_sent = bytes;
  sample.bytes_expected = bytes;
  sample.wrong = wrong;
  return sample;
}

std::string_view name_of(SendBuffer buffer) {
  return buffer == SendBuffer::kKernels ? "kernel" : "bounded";
}

Result<UniqueFd> connect_pair(int rank, int listener_fd, const std::string& address,
                              SendBuffer buffer) {
  UniqueFd fd;
  if (rank == 1) {
    TRAINYARD_ASSIGN(const comm::SocketAddress peer, comm::parse_address(address));
    fd.reset(::socket(peer.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!fd.valid()) return io_error("make a socket", errno);
    if (::connect(fd.get(), peer.raw(), peer.length) != 0) return io_error("connect", errno);
  } else {
    pollfd entry{listener_fd, POLLIN, 0};
    if (::poll(&entry, 1, kPatienceMs) <= 0) {
      return Error{ErrorCode::kDeadline, "rank 1 of the raw pair did not connect within 30 s"};
    }
    fd.reset(::accept4(listener_fd, nullptr, nullptr, SOCK_CLOEXEC));
    if (!fd.valid()) return io_error("accept", errno);
  }
  comm::set_no_delay(fd.get());
  if (buffer == SendBuffer::kBounded) comm::bound_local_buffer(fd.get());
  return fd;
}

}  // namespace trainyard::bench

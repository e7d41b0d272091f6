#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/comm/case.h"
#include "common/base/error.h"
#include "common/base/unique_fd.h"

namespace trainyard::bench {

/// The yardstick: an all-reduce of two ranks over one bare TCP connection. Small buffers cross
/// whole; of larger ones each rank sends the half that the other adds up while it receives its own,
/// then the sums go back. No headers, no checks, no deadlines; the same sockets options and the
/// same additions as the engine's ring.
class RawPair {
 public:
  /// `connection` is non-blocking, to the other rank.
  RawPair(UniqueFd connection, int rank) : connection_(std::move(connection)), rank_(rank) {}

  /// Collective. Errors: kInvalidConfig for what is no all_reduce; kPeerLost; kIo.
  Result<Sample> measure(const Case& one);

 private:
  Status all_reduce(const Case& one, std::byte* data);
  /// Sends `out` while it receives `in`, combining where `one` is given.
  Status exchange(const std::byte* out, int64_t out_bytes, std::byte* in, int64_t in_bytes,
                  const Case* one);

  const UniqueFd connection_;
  const int rank_;
  std::vector<std::byte> staging_;
  std::vector<std::byte> received_;
};

/// How much the system may buffer of what a raw pair sends: as much as it likes, or what the engine
/// bounds its own connections to (comm::bound_local_buffer). Which of the two is faster depends on
/// the size, so the yardstick is the better one at each.
enum class SendBuffer : uint8_t { kKernels, kBounded };
std::string_view name_of(SendBuffer buffer);

/// Rank 1 connects to `address`, rank 0 accepts on `listener_fd`. Errors: kDeadline; kIo.
Result<UniqueFd> connect_pair(int rank, int listener_fd, const std::string& address,
                              SendBuffer buffer);

}  // namespace trainyard::bench

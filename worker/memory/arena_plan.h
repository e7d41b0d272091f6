#pragma once

#include <cstdint>
#include <vector>

namespace trainyard::engine {

/// A buffer with a lifetime in the step's linear order of events, both ends inclusive.
struct BufferRequest {
  int64_t bytes = 0;
  int first = 0;
  int last = 0;
};

struct ArenaPlan {
  std::vector<int64_t> offsets;  ///< one per request, multiples of kArenaAlignment
  int64_t total_bytes = 0;
  int64_t live_bytes_max = 0;  ///< the lower bound: most bytes alive at one event
};

inline constexpr int64_t kArenaAlignment = 64;

/// Offsets such that no two buffers alive at the same event overlap: each at the lowest offset that
/// fits, in the best of three orders (greedy by size, by lifetime, by their product; Pisarchyk &
/// Lee 2020). Pure.
ArenaPlan plan_arena(const std::vector<BufferRequest>& requests);

}  // namespace trainyard::engine

#include "worker/comm/host/ring_order.h"

#include <algorithm>
#include <string>

#include "common/random/philox.h"

namespace trainyard::comm {

Result<std::vector<int>> complete_ring_order(std::span<const int> named, int size) {
  std::vector<int> ring;
  std::vector<bool> placed(static_cast<size_t>(size), false);
  for (auto at = named.begin(); at != named.end(); ++at) {
    if (*at < 0 || std::find(named.begin(), at, *at) != at) {
      return Error{ErrorCode::kInvalidConfig,
                   "ring order: rank " + std::to_string(*at) + (*at < 0 ? "" : " is named twice") +
                       ", wanted each rank of 0.." + std::to_string(size - 1) + " at most once"};
    }
    if (*at >= size) continue;
    ring.push_back(*at);
    placed[static_cast<size_t>(*at)] = true;
  }
  for (int rank = 0; rank < size; ++rank) {
    if (!placed[static_cast<size_t>(rank)]) ring.push_back(rank);
  }
  if (std::is_sorted(ring.begin(), ring.end())) ring.clear();
  return ring;
}

uint64_t hash_ring(std::span<const int> ring) {
  if (ring.empty()) return 0;
  uint64_t hash = mix64(ring.size());
  for (const int rank : ring)
    hash = mix64(hash ^ static_cast<uint64_t>(rank));
  return hash;
}

}  // namespace trainyard::comm

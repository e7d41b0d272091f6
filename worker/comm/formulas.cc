#include "worker/comm/formulas.h"

#include <algorithm>
#include <numeric>

#include "common/layout/mesh.h"
#include "worker/comm/host/reduce.h"

namespace trainyard::comm {
namespace {

int64_t total(std::span<const int64_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

int next_in(std::span<const int> ring, int rank, int size) {
  if (ring.empty()) return (rank + 1) % size;
  const auto place = static_cast<size_t>(std::find(ring.begin(), ring.end(), rank) - ring.begin());
  return ring[(place + 1) % ring.size()];
}

int64_t count_after(int rank, std::span<const int64_t> counts, std::span<const int> ring) {
  return counts[static_cast<size_t>(next_in(ring, rank, static_cast<int>(counts.size())))];
}

}  // namespace

std::vector<int64_t> even_counts(int64_t count, int size) {
  std::vector<int64_t> counts(static_cast<size_t>(size));
  for (int i = 0; i < size; ++i) {
    counts[static_cast<size_t>(i)] = layout::even_share(count, size, i).size();
  }
  return counts;
}

int64_t all_reduce_bytes_sent(int size, int rank, int64_t count, DType dtype,
                              std::span<const int> ring) {
  if (size == 1) return 0;
  const int64_t bytes = count * size_of(dtype);
  if (bytes <= (size == 2 ? kDirectAllReduceBytesOfTwo : kDirectAllReduceBytes)) {
    return (size - 1) * bytes;
  }
  const auto share = [&](int i) { return layout::even_share(count, size, i).size(); };
  return (2 * count - share(rank) - share(next_in(ring, rank, size))) * size_of(dtype);
}

int64_t reduce_scatter_bytes_sent(int rank, std::span<const int64_t> counts, DType dtype) {
  return (total(counts) - counts[static_cast<size_t>(rank)]) * size_of(dtype);
}

int sole_owner(std::span<const int64_t> counts) {
  const auto has_some = [](int64_t count) { return count > 0; };
  if (std::ranges::count_if(counts, has_some) != 1) return -1;
  return static_cast<int>(std::ranges::find_if(counts, has_some) - counts.begin());
}

int64_t all_gather_bytes_sent(int rank, std::span<const int64_t> counts, DType dtype,
                              std::span<const int> ring) {
  if (sole_owner(counts) >= 0) {
    return (std::ssize(counts) - 1) * counts[static_cast<size_t>(rank)] * size_of(dtype);
  }
  return all_gather_bytes_sent(static_cast<int>(counts.size()), counts[static_cast<size_t>(rank)],
                               count_after(rank, counts, ring), total(counts), dtype);
}

int64_t all_gather_bytes_sent(int size, int64_t own, int64_t next, int64_t all, DType dtype) {
  if (all * size_of(dtype) <= kDirectAllGatherBytes) return (size - 1) * own * size_of(dtype);
  return (all - next) * size_of(dtype);
}

int64_t broadcast_bytes_sent(int size, int rank, int root, int64_t bytes,
                             std::span<const int> ring) {
  if (bytes > kTreeBroadcastBytes) return next_in(ring, rank, size) != root ? bytes : 0;
  const int place = (rank - root + size) % size;
  int step = 1;
  while (step < size && (place & step) == 0)
    step <<= 1;
  int64_t children = 0;
  for (step >>= 1; step > 0; step >>= 1)
    children += place + step < size ? 1 : 0;
  return children * bytes;
}

int64_t reduce_bytes_sent(int size, int rank, int root, int64_t count, DType dtype, ReduceOp op) {
  if (size == 1) return 0;
  const int64_t bytes = count * size_of(dtype);
  if (rank != root) return bytes;
  if (bytes <= kDirectReduceBytes || size == 2 || !order_matters(dtype, op)) return 0;
  return reduce_scatter_bytes_sent(rank, even_counts(count, size), dtype);
}

int64_t scatter_bytes_sent(int rank, int root, std::span<const int64_t> counts, DType dtype) {
  return rank == root ? reduce_scatter_bytes_sent(rank, counts, dtype) : 0;
}

int64_t gather_bytes_sent(int rank, int root, std::span<const int64_t> counts, DType dtype) {
  return rank == root ? 0 : counts[static_cast<size_t>(rank)] * size_of(dtype);
}

int64_t all_to_all_bytes_sent(int rank, std::span<const int64_t> send_counts, DType dtype) {
  return reduce_scatter_bytes_sent(rank, send_counts, dtype);
}

}  // namespace trainyard::comm

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/dtype.h"
#include "worker/comm/communicator.h"

/// Payload bytes each collective sends, as functions of the call: what Counters::bytes_sent must
/// show on every transport. Pure. S is the size of the whole buffer, c_i of chunk i, P the ranks.
namespace trainyard::comm {

/// All-reduce up to this many bytes sends the whole buffer to every peer (one step).
inline constexpr int64_t kDirectAllReduceBytes = 4 * 1024;
/// The same for two ranks, where direct exchange and ring send equally many bytes.
inline constexpr int64_t kDirectAllReduceBytesOfTwo = 64 * 1024;
/// All-gather up to this many bytes in total sends its part to every peer (one step).
inline constexpr int64_t kDirectAllGatherBytes = 4 * 1024;
/// Reduce-scatter up to this many bytes exchanges directly for every type (one step).
inline constexpr int64_t kDirectReduceScatterBytes = 64 * 1024;
/// Broadcast up to this many bytes goes down a binomial tree, above down a pipelined chain.
inline constexpr int64_t kTreeBroadcastBytes = 64 * 1024;

/// The chunk a rank owns inside all_reduce: [count i / size, count (i+1) / size) for chunk i.
std::vector<int64_t> even_counts(int64_t count, int size);

/// Direct: (P-1) S. Ring and floating point: 2S - |c_rank| - |c_rank+1|; over all ranks 2(P-1)S.
int64_t all_reduce_bytes_sent(int size, int rank, int64_t count, DType dtype);

/// S - |c_rank|, whatever the algorithm; over all ranks (P-1)S.
int64_t reduce_scatter_bytes_sent(int rank, std::span<const int64_t> counts, DType dtype);

/// Direct: (P-1)|c_rank|. Ring: S - |c_rank+1|. Over all ranks (P-1)S either way.
int64_t all_gather_bytes_sent(int rank, std::span<const int64_t> counts, DType dtype);

/// S for each rank this one forwards to: one in the chain (none at its end), the children in the
/// tree. Over all ranks (P-1)S.
int64_t broadcast_bytes_sent(int size, int rank, int root, int64_t bytes);

}  // namespace trainyard::comm

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/dtype.h"
#include "worker/comm/communicator.h"

/// Payload bytes each collective sends, as functions of the call: what Counters::bytes_sent must
/// show on every transport. Pure. S is the size of the whole buffer, c_i of share i, P the ranks.
namespace trainyard::comm {

/// All-reduce up to this many bytes sends the whole buffer to every peer (one step).
inline constexpr int64_t kDirectAllReduceBytes = 4 * 1024;
/// The same for two ranks, where direct exchange and ring send equally many bytes.
inline constexpr int64_t kDirectAllReduceBytesOfTwo = 64 * 1024;
/// All-gather up to this many bytes in total sends its part to every peer (one step).
inline constexpr int64_t kDirectAllGatherBytes = 4 * 1024;
/// Reduce-scatter up to this many bytes exchanges directly for every type (one step).
inline constexpr int64_t kDirectReduceScatterBytes = 64 * 1024;
/// Reduce up to this many bytes: every rank hands the root its whole buffer (one step).
inline constexpr int64_t kDirectReduceBytes = 64 * 1024;
/// Broadcast up to this many bytes goes down a binomial tree, above down a pipelined chain.
inline constexpr int64_t kTreeBroadcastBytes = 64 * 1024;

/// Sizes of the shares that ranks own inside all_reduce: those of layout::even_share().
std::vector<int64_t> even_counts(int64_t count, int size);

/// Direct: (P-1) S. Ring and floating point: 2S - |c_rank| - |c_next|, with `next` the neighbour in
/// the ring; over all ranks 2(P-1)S. `ring` as in GroupIdentity: empty for 0, 1, 2 ...
int64_t all_reduce_bytes_sent(int size, int rank, int64_t count, DType dtype,
                              std::span<const int> ring = {});

/// S - |c_rank|, whatever the algorithm and the ring; over all ranks (P-1)S.
int64_t reduce_scatter_bytes_sent(int rank, std::span<const int64_t> counts, DType dtype);

/// The member that has all of a buffer: its reduce_scatter and all_gather are stars around it. -1:
/// several share it.
int sole_owner(std::span<const int64_t> counts);

/// Direct, and where one has it all: (P-1)|c_rank|. Ring: S - |c_next|. Over all ranks (P-1)S
/// either way.
int64_t all_gather_bytes_sent(int rank, std::span<const int64_t> counts, DType dtype,
                              std::span<const int> ring = {});

/// The same from what of the parts counts, where several have one: elements of this rank's, of its
/// neighbour's in the ring and of `all` of the `size` ranks.
int64_t all_gather_bytes_sent(int size, int64_t own, int64_t next, int64_t all, DType dtype);

/// S for each rank this one forwards to: the children in the tree, or the neighbour in the ring,
/// where that is not the root. Over all ranks (P-1)S.
int64_t broadcast_bytes_sent(int size, int rank, int root, int64_t bytes,
                             std::span<const int> ring = {});

/// Direct and chain: S, nothing at the root; over all ranks (P-1)S. By owners (floating-point sums
/// and products of more than two ranks above kDirectReduceBytes): S, at the root S - |c_root|.
int64_t reduce_bytes_sent(int size, int rank, int root, int64_t count, DType dtype, ReduceOp op);

/// The root sends S - |c_root|, the others nothing.
int64_t scatter_bytes_sent(int rank, int root, std::span<const int64_t> counts, DType dtype);

/// |c_rank|, the root nothing.
int64_t gather_bytes_sent(int rank, int root, std::span<const int64_t> counts, DType dtype);

/// All it sends to others.
int64_t all_to_all_bytes_sent(int rank, std::span<const int64_t> send_counts, DType dtype);

}  // namespace trainyard::comm

#include "tests/support/fake_nccl_operations.h"

#include <algorithm>
#include <cstring>

namespace trainyard::testing_support {

namespace nccl = comm::nccl;

namespace {

size_t bytes_of(int type) {
  switch (type) {
    case nccl::kInt8:
    case nccl::kUint8:
      return 1;
    case nccl::kBfloat16:
      return 2;
    case nccl::kInt32:
    case nccl::kFloat32:
      return 4;
    case nccl::kInt64:
    case nccl::kFloat64:
      return 8;
    default:
      complain("a data type " + std::to_string(type) + " that this fake does not know");
      return 1;
  }
}

template <typename T>
void combine(int op, const std::byte* from, std::byte* to, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    T a{};
    T b{};
    std::memcpy(&a, to + i * sizeof(T), sizeof(T));
    std::memcpy(&b, from + i * sizeof(T), sizeof(T));
    const T c = op == nccl::kSum   ? static_cast<T>(a + b)
                : op == nccl::kMax ? std::max(a, b)
                                   : std::min(a, b);
    std::memcpy(to + i * sizeof(T), &c, sizeof(T));
  }
}

/// Elements [first, + count) of what all sent, combined from the last rank to the first: sums whose
/// bits depend on the order are not those of the host's groups.
void reduce_to(const Meeting& meeting, int type, int op, size_t first, size_t count,
               std::byte* result) {
  const size_t size = bytes_of(type);
  for (size_t rank = meeting.sent.size(); rank-- > 0;) {
    const std::byte* const from = meeting.sent[rank].data() + first * size;
    if (rank + 1 == meeting.sent.size()) {
      std::memcpy(result, from, count * size);
    } else if (type == nccl::kInt64) {
      combine<int64_t>(op, from, result, count);
    } else if (type == nccl::kInt32) {
      combine<int32_t>(op, from, result, count);
    } else if (type == nccl::kFloat32) {
      combine<float>(op, from, result, count);
    } else {
      complain("a reduction of a type that this fake does not know");
    }
  }
}

std::string between(int from, int to) {
  return "from " + std::to_string(from) + " to " + std::to_string(to);
}

}  // namespace

int all_reduce(const void* from, void* to, size_t count, int type, int op, nccl::Comm comm,
               nccl::Stream stream) {
  const size_t bytes = count * bytes_of(type);
  return operate(
      "ncclAllReduce", comm,
      {.stream = static_cast<cudaStream_t>(stream),
       .key = "all",
       .signature = "all_reduce of " + std::to_string(bytes) + " bytes, op " + std::to_string(op),
       .members = ranks_of(comm),
       .place = rank_of(comm),
       .from = static_cast<const std::byte*>(from),
       .from_bytes = bytes,
       .to = static_cast<std::byte*>(to),
       .to_bytes = bytes,
       .result = [=](const Meeting& meeting, std::byte* result) {
         reduce_to(meeting, type, op, 0, count, result);
       }});
}

int reduce_scatter(const void* from, void* to, size_t count, int type, int op, nccl::Comm comm,
                   nccl::Stream stream) {
  const size_t bytes = count * bytes_of(type);
  const int rank = rank_of(comm);
  const int ranks = ranks_of(comm);
  const auto* const begin = static_cast<const std::byte*>(from);
  if (to != begin + static_cast<size_t>(rank) * bytes)
    return complain("ncclReduceScatter neither in place nor expected elsewhere");
  return operate("ncclReduceScatter", comm,
                 {.stream = static_cast<cudaStream_t>(stream),
                  .key = "all",
                  .signature = "reduce_scatter of " + std::to_string(bytes) + " bytes",
                  .members = ranks,
                  .place = rank,
                  .from = begin,
                  .from_bytes = bytes * static_cast<size_t>(ranks),
                  .to = static_cast<std::byte*>(to),
                  .to_bytes = bytes,
                  .result = [=](const Meeting& meeting, std::byte* result) {
                    reduce_to(meeting, type, op, static_cast<size_t>(rank) * count, count, result);
                  }});
}

int all_gather(const void* from, void* to, size_t count, int type, nccl::Comm comm,
               nccl::Stream stream) {
  const size_t bytes = count * bytes_of(type);
  const int rank = rank_of(comm);
  const int ranks = ranks_of(comm);
  if (from != static_cast<std::byte*>(to) + static_cast<size_t>(rank) * bytes)
    return complain("ncclAllGather neither in place nor expected elsewhere");
  return operate("ncclAllGather", comm,
                 {.stream = static_cast<cudaStream_t>(stream),
                  .key = "all",
                  .signature = "all_gather of " + std::to_string(bytes) + " bytes",
                  .members = ranks,
                  .place = rank,
                  .from = static_cast<const std::byte*>(from),
                  .from_bytes = bytes,
                  .to = static_cast<std::byte*>(to),
                  .to_bytes = bytes * static_cast<size_t>(ranks),
                  .result = [=](const Meeting& meeting, std::byte* result) {
                    for (const auto& sent : meeting.sent)
                      result = std::copy(sent.begin(), sent.end(), result);
                  }});
}

int broadcast(const void* from, void* to, size_t count, int type, int root, nccl::Comm comm,
              nccl::Stream stream) {
  const size_t bytes = count * bytes_of(type);
  const int rank = rank_of(comm);
  return operate(
      "ncclBroadcast", comm,
      {.stream = static_cast<cudaStream_t>(stream),
       .key = "all",
       .signature = "broadcast of " + std::to_string(bytes) + " bytes from " + std::to_string(root),
       .members = ranks_of(comm),
       .place = rank,
       .from = static_cast<const std::byte*>(from),
       .from_bytes = rank == root ? bytes : 0,
       .to = static_cast<std::byte*>(to),
       .to_bytes = bytes,
       .result = [=](const Meeting& meeting, std::byte* result) {
         const auto& sent = meeting.sent[static_cast<size_t>(root)];
         std::copy(sent.begin(), sent.end(), result);
       }});
}

int reduce(const void* from, void* to, size_t count, int type, int op, int root, nccl::Comm comm,
           nccl::Stream stream) {
  const size_t bytes = count * bytes_of(type);
  const int rank = rank_of(comm);
  return operate(
      "ncclReduce", comm,
      {.stream = static_cast<cudaStream_t>(stream),
       .key = "all",
       .signature = "reduce of " + std::to_string(bytes) + " bytes to " + std::to_string(root),
       .members = ranks_of(comm),
       .place = rank,
       .from = static_cast<const std::byte*>(from),
       .from_bytes = bytes,
       .to = static_cast<std::byte*>(to),
       .to_bytes = rank == root ? bytes : 0,
       .result = [=](const Meeting& meeting, std::byte* result) {
         reduce_to(meeting, type, op, 0, count, result);
       }});
}

int send(const void* from, size_t count, int type, int peer, nccl::Comm comm, nccl::Stream stream) {
  const size_t bytes = count * bytes_of(type);
  return operate("ncclSend", comm,
                 {.stream = static_cast<cudaStream_t>(stream),
                  .key = between(rank_of(comm), peer),
                  .signature = std::to_string(bytes) + " bytes",
                  .members = 2,
                  .place = 0,
                  .from = static_cast<const std::byte*>(from),
                  .from_bytes = bytes,
                  .to = nullptr,
                  .to_bytes = 0,
                  .result = nullptr});
}

int receive(void* to, size_t count, int type, int peer, nccl::Comm comm, nccl::Stream stream) {
  const size_t bytes = count * bytes_of(type);
  return operate("ncclRecv", comm,
                 {.stream = static_cast<cudaStream_t>(stream),
                  .key = between(peer, rank_of(comm)),
                  .signature = std::to_string(bytes) + " bytes",
                  .members = 2,
                  .place = 1,
                  .from = nullptr,
                  .from_bytes = 0,
                  .to = static_cast<std::byte*>(to),
                  .to_bytes = bytes,
                  .result = [](const Meeting& meeting, std::byte* result) {
                    std::copy(meeting.sent[0].begin(), meeting.sent[0].end(), result);
                  }});
}

}  // namespace trainyard::testing_support

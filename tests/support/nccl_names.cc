// A shared library with the names that NCCL has, each function with a word of its own.

#include "worker/comm/nccl_api.h"

using trainyard::comm::nccl::Comm;
using trainyard::comm::nccl::Config;
using trainyard::comm::nccl::Stream;
using trainyard::comm::nccl::UniqueId;

// NOLINTBEGIN(readability-identifier-naming): the library's
#define NCCL_NAME(name, number, ...) \
  extern "C" int name(__VA_ARGS__) { return number; }

NCCL_NAME(ncclGetVersion, 101, int*)
NCCL_NAME(ncclGetUniqueId, 102, UniqueId*)
NCCL_NAME(ncclCommInitRankConfig, 103, Comm*, int, UniqueId, int, Config*)
NCCL_NAME(ncclCommGetAsyncError, 104, Comm, int*)
NCCL_NAME(ncclCommFinalize, 105, Comm)
NCCL_NAME(ncclCommDestroy, 106, Comm)
NCCL_NAME(ncclCommAbort, 107, Comm)
NCCL_NAME(ncclGroupStart, 110)
NCCL_NAME(ncclGroupEnd, 111)
NCCL_NAME(ncclAllReduce, 112, const void*, void*, size_t, int, int, Comm, Stream)
NCCL_NAME(ncclReduceScatter, 113, const void*, void*, size_t, int, int, Comm, Stream)
NCCL_NAME(ncclAllGather, 114, const void*, void*, size_t, int, Comm, Stream)
NCCL_NAME(ncclBroadcast, 115, const void*, void*, size_t, int, int, Comm, Stream)
NCCL_NAME(ncclReduce, 116, const void*, void*, size_t, int, int, int, Comm, Stream)
NCCL_NAME(ncclSend, 117, const void*, size_t, int, int, Comm, Stream)
NCCL_NAME(ncclRecv, 118, void*, size_t, int, int, Comm, Stream)

extern "C" const char* ncclGetErrorString(int /*error*/) { return "ncclGetErrorString"; }
extern "C" const char* ncclGetLastError(void* /*comm*/) { return "ncclGetLastError"; }
// NOLINTEND(readability-identifier-naming)

#pragma once

#include <array>
#include <cstddef>
#include <string>

#include <climits>

#include "common/base/error.h"

/// NCCL as a table of C functions, filled by dlopen at run time or by a test, so that neither
/// headers nor the library are needed to build. Numbers and layouts are those of nccl.h, the same
/// since 2.18: newer libraries read a configuration of that version and fill in the rest.
namespace trainyard::comm::nccl {

inline constexpr int kSuccess = 0;     // ncclSuccess
inline constexpr int kInProgress = 7;  // ncclInProgress
inline constexpr int kInt8 = 0, kUint8 = 1, kInt32 = 2, kInt64 = 4, kFloat32 = 7, kFloat64 = 8,
                     kBfloat16 = 9;                 // ncclDataType_t
inline constexpr int kSum = 0, kMax = 2, kMin = 3;  // ncclRedOp_t
inline constexpr int kVersionMin = 21800;           // ncclGetVersion: 10000 x 2 + 100 x 18

/// ncclUniqueId.
struct UniqueId {
  std::array<char, 128> data{};
};
/// ncclConfig_t of 2.18. INT_MIN: as the library likes.
struct Config {
  size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = kVersionMin;
  int blocking = 0;
  int cga_cluster_size = INT_MIN;
  int min_ctas = INT_MIN;
  int max_ctas = INT_MIN;
  const char* network = nullptr;
  int split_share = INT_MIN;
};
static_assert(sizeof(Config) == 48);

using Comm = void*;    // ncclComm_t
using Stream = void*;  // cudaStream_t

/// Each returns an ncclResult_t, but for those that return text.
struct Api {
  int (*get_version)(int* version) = nullptr;
  int (*get_unique_id)(UniqueId* id) = nullptr;
  int (*comm_init)(Comm* comm, int ranks, UniqueId id, int rank, Config* config) = nullptr;
  int (*comm_async_error)(Comm comm, int* error) = nullptr;
  int (*comm_finalize)(Comm comm) = nullptr;
  int (*comm_destroy)(Comm comm) = nullptr;
  int (*comm_abort)(Comm comm) = nullptr;
  const char* (*error_string)(int error) = nullptr;
  const char* (*last_error)(Comm comm) = nullptr;
  int (*group_start)() = nullptr;
  int (*group_end)() = nullptr;
  int (*all_reduce)(const void* from, void* to, size_t count, int type, int op, Comm comm,
                    Stream stream) = nullptr;
  int (*reduce_scatter)(const void* from, void* to, size_t count_of_rank, int type, int op,
                        Comm comm, Stream stream) = nullptr;
  int (*all_gather)(const void* from, void* to, size_t count_of_rank, int type, Comm comm,
                    Stream stream) = nullptr;
  int (*broadcast)(const void* from, void* to, size_t count, int type, int root, Comm comm,
                   Stream stream) = nullptr;
  int (*reduce)(const void* from, void* to, size_t count, int type, int op, int root, Comm comm,
                Stream stream) = nullptr;
  int (*send)(const void* from, size_t count, int type, int peer, Comm comm,
              Stream stream) = nullptr;
  int (*receive)(void* to, size_t count, int type, int peer, Comm comm, Stream stream) = nullptr;
};

/// Opens the library by name. It stays open. Errors: kInvalidConfig naming the library, what is
/// missing of it or how old it is, and what to install.
Result<Api> load(const std::string& library = "libnccl.so.2");

/// kInvalidConfig for a version, as ncclGetVersion gives it, below 2.18.
Status check_version(int version);

}  // namespace trainyard::comm::nccl

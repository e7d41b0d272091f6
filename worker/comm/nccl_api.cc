#include "worker/comm/nccl_api.h"

#include <dlfcn.h>
#include <type_traits>

namespace trainyard::comm::nccl {
namespace {

Error refused(const std::string& found) {
  return {ErrorCode::kInvalidConfig,
          "engine.runtime.transport: found Nccl, but " + found +
              ", wanted libnccl.so.2 of NCCL 2.18 or newer: install the package libnccl2 (or the "
              "wheel nvidia-nccl-cu13) and put its folder into LD_LIBRARY_PATH, or use transport: "
              "Auto"};
}

}  // namespace

Result<Api> load(const std::string& library) {
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const std::string why = dlerror();  // NOLINT(concurrency-mt-unsafe): glibc's is of the thread
    return refused("no NCCL (" + why + ")");
  }
  std::string missing;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
    if (function == nullptr && missing.empty()) missing = name;
  };
  Api api;
  find(api.get_version, "ncclGetVersion");
  find(api.get_unique_id, "ncclGetUniqueId");
  find(api.comm_init, "ncclCommInitRankConfig");
  find(api.comm_async_error, "ncclCommGetAsyncError");
  find(api.comm_finalize, "ncclCommFinalize");
  find(api.comm_destroy, "ncclCommDestroy");
  find(api.comm_abort, "ncclCommAbort");
  find(api.error_string, "ncclGetErrorString");
  find(api.last_error, "ncclGetLastError");
  find(api.group_start, "ncclGroupStart");
  find(api.group_end, "ncclGroupEnd");
  find(api.all_reduce, "ncclAllReduce");
  find(api.reduce_scatter, "ncclReduceScatter");
  find(api.all_gather, "ncclAllGather");
  find(api.broadcast, "ncclBroadcast");
  find(api.reduce, "ncclReduce");
  find(api.send, "ncclSend");
  find(api.receive, "ncclRecv");
  if (!missing.empty()) return refused(library + " has no " + missing);
  return api;
}

Status check_version(int version) {
  if (version >= kVersionMin) return {};
  return refused("libnccl.so.2 is of version " + std::to_string(version / 10000) + "." +
                 std::to_string(version / 100 % 100));
}

}  // namespace trainyard::comm::nccl

#include "kernels/cuda/cublaslt.h"

#include <dlfcn.h>

namespace trainyard::kernels::cuda::cublaslt {

Result<Api> load(const std::string& library) {
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return Error{ErrorCode::kUnavailable,
                 "cuBLASLt: " + std::string(dlerror()) + "; put its folder into LD_LIBRARY_PATH"};
  }
  std::string missing;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
    if (function == nullptr && missing.empty()) missing = name;
  };
  Api api;
  find(api.create, "cublasLtCreate");
  find(api.destroy, "cublasLtDestroy");
  find(api.version, "cublasLtGetVersion");
  find(api.create_description, "cublasLtMatmulDescCreate");
  find(api.destroy_description, "cublasLtMatmulDescDestroy");
  find(api.set_description, "cublasLtMatmulDescSetAttribute");
  find(api.create_layout, "cublasLtMatrixLayoutCreate");
  find(api.destroy_layout, "cublasLtMatrixLayoutDestroy");
  find(api.create_preference, "cublasLtMatmulPreferenceCreate");
  find(api.destroy_preference, "cublasLtMatmulPreferenceDestroy");
  find(api.set_preference, "cublasLtMatmulPreferenceSetAttribute");
  find(api.heuristics, "cublasLtMatmulAlgoGetHeuristic");
  find(api.algorithm_config, "cublasLtMatmulAlgoConfigGetAttribute");
  find(api.set_algorithm_config, "cublasLtMatmulAlgoConfigSetAttribute");
  find(api.check, "cublasLtMatmulAlgoCheck");
  find(api.matmul, "cublasLtMatmul");
  if (!missing.empty()) {
    return Error{ErrorCode::kUnavailable,
                 "cuBLASLt: " + library + " has no " + missing + "; CUDA 12 or newer has it"};
  }
  return api;
}

}  // namespace trainyard::kernels::cuda::cublaslt

#pragma once

#include "kernels/cuda/cublaslt.h"
#if !defined(TRAINYARD_DEVICE_BUILD)
#include "tests/support/fake_cublaslt.h"
#endif

namespace trainyard::kernels::cuda {

/// This machine's cuBLASLt, the newest first; over the emulation, its double.
inline Result<cublaslt::Api> product_library() {
#if defined(TRAINYARD_DEVICE_BUILD)
  for (const char* const name : {"libcublasLt.so.13", "libcublasLt.so.12"}) {
    if (auto api = cublaslt::load(name)) return api;
  }
  return cublaslt::load("libcublasLt.so");
#else
  return testing_support::fake_cublaslt_api();
#endif
}

}  // namespace trainyard::kernels::cuda

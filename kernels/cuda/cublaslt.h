#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "common/base/error.h"
#include "kernels/simt/runtime.h"

/// cuBLASLt as a table of C functions, filled by dlopen at run time or by a test's emulation, so
/// that neither headers nor the library are needed to build. Numbers and layouts are those of
/// cublasLt.h and cublas_api.h, the same since CUDA 12, checked against 13.1.0.
namespace trainyard::kernels::cuda::cublaslt {

inline constexpr int kSuccess = 0;           // CUBLAS_STATUS_SUCCESS
inline constexpr int kNotSupported = 15;     // CUBLAS_STATUS_NOT_SUPPORTED
inline constexpr int kInvalidValue = 7;      // CUBLAS_STATUS_INVALID_VALUE
inline constexpr int kExecutionFailed = 13;  // CUBLAS_STATUS_EXECUTION_FAILED
inline constexpr int kCompute32F = 68;       // CUBLAS_COMPUTE_32F
inline constexpr int kReal32F = 0;           // CUDA_R_32F
inline constexpr int kReal16BF = 14;         // CUDA_R_16BF
inline constexpr int kTransposeA = 3;        // CUBLASLT_MATMUL_DESC_TRANSA
inline constexpr int kTransposeB = 4;        // CUBLASLT_MATMUL_DESC_TRANSB
inline constexpr int kEpilogue = 7;          // CUBLASLT_MATMUL_DESC_EPILOGUE
inline constexpr int kBiasPointer = 8;       // CUBLASLT_MATMUL_DESC_BIAS_POINTER
inline constexpr int kEpilogueBias = 4;      // CUBLASLT_EPILOGUE_BIAS
inline constexpr int kOperationN = 0;        // CUBLAS_OP_N
inline constexpr int kOperationT = 1;        // CUBLAS_OP_T
inline constexpr int kMaxWorkspace = 1;      // CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES
inline constexpr int kReductionSchemes = 3;  // CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK
inline constexpr int kAlignmentOfA =
    5;                             // CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, and of B, C, D
inline constexpr int kSplitK = 2;  // CUBLASLT_ALGO_CONFIG_SPLITK_NUM
inline constexpr int kReductionScheme = 3;   // CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME
inline constexpr uint32_t kNoReduction = 0;  // CUBLASLT_REDUCTION_SCHEME_NONE

/// cublasLtMatmulAlgo_t: opaque, may be stored and used again by the same library on the same GPU.
struct Algorithm {
  std::array<uint64_t, 8> data{};
};
/// cublasLtMatmulHeuristicResult_t.
struct Heuristic {
  Algorithm algorithm;
  size_t workspace_bytes = 0;
  int status = 0;
  float waves = 0;
  int reserved[4] = {};
};

using Handle = void*;
using Description = void*;
using Layout = void*;
using Preference = void*;

struct Api {
  int (*create)(Handle*) = nullptr;
  int (*destroy)(Handle) = nullptr;
  size_t (*version)() = nullptr;
  int (*create_description)(Description*, int compute_type, int scale_type) = nullptr;
  int (*destroy_description)(Description) = nullptr;
  int (*set_description)(Description, int attribute, const void* value, size_t bytes) = nullptr;
  int (*create_layout)(Layout*, int type, uint64_t rows, uint64_t columns, int64_t ld) = nullptr;
  int (*destroy_layout)(Layout) = nullptr;
  int (*create_preference)(Preference*) = nullptr;
  int (*destroy_preference)(Preference) = nullptr;
  int (*set_preference)(Preference, int attribute, const void* value, size_t bytes) = nullptr;
  int (*heuristics)(Handle, Description, Layout a, Layout b, Layout c, Layout d, Preference,
                    int requested, Heuristic* results, int* returned) = nullptr;
  int (*algorithm_config)(const Algorithm*, int attribute, void* value, size_t bytes,
                          size_t* written) = nullptr;
  int (*set_algorithm_config)(Algorithm*, int attribute, const void* value, size_t bytes) = nullptr;
  /// Whether the algorithm is one for the problem; fills in what the heuristics would.
  int (*check)(Handle, Description, Layout a, Layout b, Layout c, Layout d, const Algorithm*,
               Heuristic* result) = nullptr;
  int (*matmul)(Handle, Description, const void* alpha, const void* a, Layout, const void* b,
                Layout, const void* beta, const void* c, Layout, void* d, Layout, const Algorithm*,
                void* workspace, size_t workspace_bytes, cudaStream_t) = nullptr;
};

/// Opens the library by name, for example "libcublasLt.so.13". It stays open. kUnavailable names
/// the library or the function that is missing.
Result<Api> load(const std::string& library);

}  // namespace trainyard::kernels::cuda::cublaslt

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cuda/cublaslt.h"

/// cuBLASLt on the CPU, over the emulation of CUDA: computes in ascending steps of k16, and is as
/// strict as the library about layouts, alignment, workspace and algorithms it has not made.
namespace trainyard::testing_support {

struct FakeCublasLt {
  size_t version = 130100;
  /// A plan's split-K; what needs_workspace_bytes says is asked for by each plan with its index.
  std::vector<int> split_k = {4, 1, 1, 2, 1};
  size_t needs_workspace_bytes = 1024;
  /// Fails the named function ("matmul", "heuristics", "create", ...) with this status.
  std::string fails;
  int failure = 14;  ///< CUBLAS_STATUS_INTERNAL_ERROR
  /// Index of a plan that cublasLtMatmulAlgoCheck refuses.
  size_t refused_algorithm = ~size_t{0};
  /// Sums over descending k: what canonical numerics must notice.
  bool descending = false;

  // What was seen.
  int64_t products = 0, heuristics_asked = 0;
  int64_t live_objects = 0;     ///< handles, descriptions, layouts, preferences not destroyed
  std::vector<int> splits_run;  ///< split-K of each product's plan
  std::string complaint;        ///< the first rule that a call broke
};
/// Settings and sightings of the one fake of a program, set to defaults by the caller.
FakeCublasLt& fake_cublaslt();
kernels::cuda::cublaslt::Api fake_cublaslt_api();

}  // namespace trainyard::testing_support

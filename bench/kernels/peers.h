#pragma once

#include <cstdint>
#include <functional>

#include "common/base/dtype.h"

namespace trainyard::bench {

/// A plain product C[M,N] fp32 = op(A) op(B), row-major and dense.
struct PeerProduct {
  int64_t m = 0, n = 0, k = 0;
  const void* a = nullptr;
  bool transpose_a = false;
  const void* b = nullptr;
  bool transpose_b = false;
  DType type = DType::kFloat32;
  float* c = nullptr;
  int threads = 1;
};

/// Runs the product by the library; empty where the library was not found or cannot do it.
std::function<void()> openblas_product(const PeerProduct& p);
std::function<void()> onednn_product(const PeerProduct& p);

}  // namespace trainyard::bench

#pragma once

#include <cstdint>

#include "common/base/dtype.h"

namespace trainyard::kernels {

/// Elements in device memory, dense and row-major, with their type. How many there are is said
/// elsewhere. Converts from fp32 pointers; null: no elements.
struct Elements {
  void* data = nullptr;
  DType type = DType::kFloat32;

  constexpr Elements() = default;
  constexpr Elements(void* elements, DType element_type) : data(elements), type(element_type) {}
  constexpr Elements(float* elements) : data(elements) {}  // NOLINT(google-explicit-constructor)
};

/// Elements that are only read.
struct ConstElements {
  const void* data = nullptr;
  DType type = DType::kFloat32;

  constexpr ConstElements() = default;
  constexpr ConstElements(const void* elements, DType element_type)
      : data(elements), type(element_type) {}
  constexpr ConstElements(const float* elements)  // NOLINT(google-explicit-constructor)
      : data(elements) {}
  constexpr ConstElements(const Elements& elements)  // NOLINT(google-explicit-constructor)
      : data(elements.data), type(elements.type) {}
};

/// Where sums over rows go: added to `sum` in fp32, or rounded once to fixed point and added to
/// `exact` as kernels/kernel_set.h says. At most one of the two is set; with neither the sums are
/// dropped. Converts from pointers to either.
struct GradientSum {
  float* sum = nullptr;
  int64_t* exact = nullptr;

  constexpr GradientSum() = default;
  constexpr GradientSum(float* sums) : sum(sums) {}      // NOLINT(google-explicit-constructor)
  constexpr GradientSum(int64_t* sums) : exact(sums) {}  // NOLINT(google-explicit-constructor)
  /// At `data`, of kFloat32 or kInt64.
  constexpr GradientSum(void* data, DType type) {
    if (type == DType::kFloat32) {
      sum = static_cast<float*>(data);
    } else {
      exact = static_cast<int64_t*>(data);
    }
  }

  constexpr bool is_set() const { return sum != nullptr || exact != nullptr; }
  constexpr DType type() const { return sum != nullptr ? DType::kFloat32 : DType::kInt64; }
  constexpr void* data() const { return sum != nullptr ? static_cast<void*>(sum) : exact; }
};

/// The types of what a device keeps, for one type of GEMM inputs.
struct DeviceFormats {
  DType compute = DType::kFloat32;   ///< GEMM inputs: kFloat32 or kBFloat16
  DType residual = DType::kFloat32;  ///< the residual stream, and what is added to it
  DType gradient = DType::kFloat32;  ///< gradients that no GEMM reads, the residual stream's too
  /// Sums of the gradients of parameters: kInt64, exact, or kFloat32, whose bits depend on how the
  /// work is divided. The choice that numerics.mode stands for.
  DType sums = DType::kInt64;
};

}  // namespace trainyard::kernels

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/base/dtype.h"
#include "common/base/error.h"
#include "common/layout/layout.h"
#include "worker/memory/memory_source.h"
#include "worker/state/units.h"

namespace trainyard::engine {

/// What ops read: every parameter whole, in the type of its unit. Each rank updates its own part
/// of a unit and gathers the others'.
class Weights {
 public:
  /// `layout` is not owned. Errors: kUnavailable when memory is short.
  static Result<std::unique_ptr<Weights>> create(const layout::Layout& layout, const Units& units,
                                                 MemorySource& memory);

  int64_t bytes() const { return static_cast<int64_t>(block_->bytes().size()); }
  DType dtype(int param) const { return dtypes_[static_cast<size_t>(layout_.unit_of(param))]; }
  DType unit_dtype(int unit) const { return dtypes_[static_cast<size_t>(unit)]; }
  /// A parameter's first element, of dtype(param).
  void* data(int param);
  /// CHECKs that it is fp32.
  std::span<float> fp32(int param);
  /// A unit's whole buffer.
  std::span<std::byte> unit(int unit);

 private:
  explicit Weights(const layout::Layout& layout) : layout_(layout) {}

  const layout::Layout& layout_;
  std::vector<DType> dtypes_;    // by unit
  std::vector<int64_t> offset_;  // by unit, in bytes
  std::unique_ptr<MemoryBlock> block_;
};

}  // namespace trainyard::engine

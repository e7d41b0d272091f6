#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/base/dtype.h"
#include "common/base/error.h"
#include "common/layout/layout.h"
#include "worker/device/device.h"

namespace trainyard::engine {

/// What ops read: parameters of the units that a rank holds, in the type of their unit. Each rank
/// updates its own part of a unit and gathers the others'. Where the layout cuts weights it holds
/// that part alone for good; ops then read a unit in the buffer that it is lent for a while.
class Weights {
 public:
  /// `layout` and `device` are not owned. Errors: kUnavailable when memory is short.
  static Result<std::unique_ptr<Weights>> create(const layout::Layout& layout,
                                                 const layout::Coordinate& at, Device& device);

  /// Held for good.
  int64_t bytes() const { return static_cast<int64_t>(block_->bytes().size()); }
  DType dtype(int param) const { return layout_.unit(layout_.unit_of(param)).dtype; }

  /// Where weights are cut: copies this rank's part of a unit to its place in `buffer`, which
  /// ops read from now on; empty: they read it no more.
  void lend(int unit, std::span<std::byte> buffer);
  /// A unit's whole buffer. CHECKs that there is one.
  std::span<std::byte> unit(int unit);
  /// A parameter's first element, of dtype(param). CHECKs that its unit is held.
  void* data(int param) {
    return unit(layout_.unit_of(param)).data() + layout_.place(param).begin * size_of(dtype(param));
  }
  /// What this rank owns of a unit, and of a parameter.
  std::span<std::byte> owned_unit(int unit);
  std::span<std::byte> owned(int param);
  /// The same. CHECKs that it is fp32.
  std::span<float> owned_fp32(int param);
  /// The same where it is bf16; null where it is not.
  uint16_t* owned_bf16(int param) {
    return dtype(param) == DType::kFloat32 ? nullptr
                                           : reinterpret_cast<uint16_t*>(owned(param).data());
  }

 private:
  Weights(const layout::Layout& layout, const layout::Coordinate& at, Device& device)
      : layout_(layout), at_(at), device_(device) {}

  const layout::Layout& layout_;
  layout::Coordinate at_;
  Device& device_;
  std::vector<std::span<std::byte>> owned_;   // by unit
  std::vector<std::span<std::byte>> buffer_;  // by unit; empty where it is not held
  std::unique_ptr<MemoryBlock> block_;
};

}  // namespace trainyard::engine

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/error.h"
#include "common/hash/hash.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/memory_offers.h"

namespace trainyard::checkpoint {

/// Slots of equal size in a memory file, for states of one rank. Each has a description, which is a
/// sealed manifest, and data. A slot without a description is not complete.
///
/// Not thread-safe. The mapping is the caller's and outlives this.
class SlotRegion {
 public:
  /// At `begin`, which is aligned to a page; `layout`: of what the slots hold and whose they are.
  SlotRegion(std::byte* begin, int slots, int64_t data_bytes, Hash128 layout)
      : begin_(begin), slots_(slots), data_bytes_(data_bytes), layout_(layout) {}
  /// Memory of a region.
  static int64_t bytes(int slots, int64_t data_bytes);
  /// Longest description, bytes.
  static int64_t description_bytes_max();

  /// Empties all slots that hold states of another layout or owner.
  void adopt() const;

  int64_t data_bytes() const { return data_bytes_; }
  std::span<std::byte> data(int slot) const;
  bool is_complete(int slot) const;
  /// The description of a complete slot; empty where it is out of bounds.
  std::string_view description(int slot) const;
  /// Of a complete slot whose description is what was sealed.
  std::optional<Manifest> manifest(int slot) const;
  /// The complete slot that holds this state.
  std::optional<int> find(const CheckpointId& id) const;
  /// All complete states, newest first. Their data have not been looked at.
  std::vector<MemoryOffer> offers() const;

  void empty(int slot) const;
  /// The slot's data are whole. Errors: kUnavailable for a description that does not fit.
  Status complete(int slot, std::string_view description) const;

 private:
  struct RegionHead;
  struct SlotHead;
  SlotHead& head(int slot) const;

  std::byte* begin_;
  int slots_;
  int64_t data_bytes_;
  Hash128 layout_;
};

}  // namespace trainyard::checkpoint

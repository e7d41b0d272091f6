#include "worker/checkpoint/slot_region.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

namespace trainyard::checkpoint {
namespace {

constexpr int64_t kPageBytes = 4096;
/// Of a slot before its data. Pages that no configuration reaches are never touched.
constexpr int64_t kTextBytes = int64_t{2} << 20;
constexpr uint64_t kRegionMagic = 0x544d454d'44524159;  // "YARDMEMT"
constexpr uint64_t kWholeMagic = 0x454c4f48'57444c4f;   // a slot that is complete

int64_t slot_bytes(int64_t data_bytes) {
  return kTextBytes + (data_bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

}  // namespace

/// At the beginning of the region: what its slots are of.
struct SlotRegion::RegionHead {
  std::atomic<uint64_t> magic;  ///< stored last
  int64_t data_bytes;
  Hash128 layout;
};

/// At the beginning of a slot; its description follows.
struct SlotRegion::SlotHead {
  std::atomic<uint64_t> whole;  ///< kWholeMagic once all else is; stored last
  int64_t text_bytes;
  char* text() { return reinterpret_cast<char*>(this + 1); }
  static constexpr int64_t kTextMax = kTextBytes - 16;
};

int64_t SlotRegion::bytes(int slots, int64_t data_bytes) {
  return kPageBytes + slots * slot_bytes(data_bytes);
}

int64_t SlotRegion::description_bytes_max() { return SlotHead::kTextMax; }

void SlotRegion::adopt() const {
  auto& head = *reinterpret_cast<RegionHead*>(begin_);
  const bool same = head.magic.load(std::memory_order_acquire) == kRegionMagic &&
                    head.data_bytes == data_bytes_ && head.layout == layout_;
  if (same) return;
  head.magic.store(0, std::memory_order_release);
  for (int slot = 0; slot < slots_; ++slot)
    empty(slot);
  head.data_bytes = data_bytes_;
  head.layout = layout_;
  head.magic.store(kRegionMagic, std::memory_order_release);
}

SlotRegion::SlotHead& SlotRegion::head(int slot) const {
  static_assert(sizeof(SlotHead) == 16);
  return *reinterpret_cast<SlotHead*>(begin_ + kPageBytes + slot * slot_bytes(data_bytes_));
}

std::span<std::byte> SlotRegion::data(int slot) const {
  std::byte* const at = begin_ + kPageBytes + slot * slot_bytes(data_bytes_) + kTextBytes;
  return {at, static_cast<size_t>(data_bytes_)};
}

bool SlotRegion::is_complete(int slot) const {
  return head(slot).whole.load(std::memory_order_acquire) == kWholeMagic;
}

std::string_view SlotRegion::description(int slot) const {
  SlotHead& head = this->head(slot);
  if (!is_complete(slot) || head.text_bytes < 1 || head.text_bytes > SlotHead::kTextMax) return {};
  return {head.text(), static_cast<size_t>(head.text_bytes)};
}

std::optional<Manifest> SlotRegion::manifest(int slot) const {
  const std::string_view text = description(slot);
  if (text.empty()) return std::nullopt;
  auto manifest = decode_manifest(text);
  if (!manifest || manifest->shards.size() != 1) return std::nullopt;
  if (manifest->shards.front().bytes != data_bytes_) return std::nullopt;
  return *std::move(manifest);
}

std::optional<int> SlotRegion::find(const CheckpointId& id) const {
  for (int slot = 0; slot < slots_; ++slot) {
    const std::optional<Manifest> found = manifest(slot);
    if (found && found->id() == id) return slot;
  }
  return std::nullopt;
}

std::vector<MemoryOffer> SlotRegion::offers() const {
  std::vector<MemoryOffer> offers;
  for (int slot = 0; slot < slots_; ++slot) {
    if (const auto found = manifest(slot)) offers.push_back({found->id(), found->branch_id});
  }
  std::sort(offers.begin(), offers.end(), [](const MemoryOffer& a, const MemoryOffer& b) {
    return std::pair(a.id.step, a.id.generation) > std::pair(b.id.step, b.id.generation);
  });
  return offers;
}

void SlotRegion::empty(int slot) const { head(slot).whole.store(0, std::memory_order_release); }

Status SlotRegion::complete(int slot, std::string_view description) const {
  if (std::ssize(description) > SlotHead::kTextMax) {
    return Error{ErrorCode::kUnavailable,
                 "state in memory: its description has " + std::to_string(description.size()) +
                     " bytes, room is for " + std::to_string(SlotHead::kTextMax)};
  }
  SlotHead& head = this->head(slot);
  std::memcpy(head.text(), description.data(), description.size());
  head.text_bytes = std::ssize(description);
  head.whole.store(kWholeMagic, std::memory_order_release);
  return {};
}

}  // namespace trainyard::checkpoint

#include "worker/state/weights.h"

#include "common/base/check.h"

namespace trainyard::engine {

Result<std::unique_ptr<Weights>> Weights::create(const layout::Layout& layout,
                                                 const layout::Coordinate& at, Device& device) {
  auto weights = std::unique_ptr<Weights>(new Weights(layout, at, device));
  const bool cut = layout.sharding().weights;
  const auto size_in_bytes = [&](int unit) {
    const int64_t elements = cut ? layout.shard(unit, at).size() : layout.elements(unit, at);
    return static_cast<size_t>(elements * size_of(layout.unit(unit).dtype));
  };
  size_t bytes = 0;
  for (int unit = 0; unit < layout.units(); ++unit)
    bytes += size_in_bytes(unit);
  TRAINYARD_ASSIGN(weights->block_, device.memory().allocate(static_cast<int64_t>(bytes)));
  std::span<std::byte> free = weights->block_->bytes();
  for (int unit = 0; unit < layout.units(); ++unit) {
    const std::span<std::byte> held = free.first(size_in_bytes(unit));
    free = free.subspan(held.size());
    weights->buffer_.push_back(cut ? std::span<std::byte>() : held);
    const layout::Range part = layout.shard(unit, at);
    const auto element = static_cast<size_t>(size_of(layout.unit(unit).dtype));
    weights->owned_.push_back(cut ? held
                                  : held.subspan(static_cast<size_t>(part.begin) * element,
                                                 static_cast<size_t>(part.size()) * element));
  }
  return weights;
}

void Weights::lend(int unit, std::span<std::byte> buffer) {
  TRAINYARD_CHECK(layout_.sharding().weights);
  const auto u = static_cast<size_t>(unit);
  buffer_[u] = buffer;
  if (buffer.empty()) return;
  const int64_t begin = layout_.shard(unit, at_).begin * size_of(layout_.unit(unit).dtype);
  device_.copy({buffer.data() + begin, owned_[u].data(), owned_[u].size()});
}

std::span<std::byte> Weights::unit(int unit) {
  const std::span<std::byte> buffer = buffer_[static_cast<size_t>(unit)];
  TRAINYARD_CHECK(!buffer.empty());
  return buffer;
}

std::span<std::byte> Weights::owned_unit(int unit) { return owned_[static_cast<size_t>(unit)]; }

std::span<std::byte> Weights::owned(int param) {
  const int unit = layout_.unit_of(param);
  const layout::Range range = layout_.owned(param, at_);
  if (range.size() == 0) return {};
  const int64_t in_part = layout_.place(param).begin + range.begin - layout_.shard(unit, at_).begin;
  const int64_t element = size_of(dtype(param));
  return owned_unit(unit).subspan(static_cast<size_t>(in_part * element),
                                  static_cast<size_t>(range.size() * element));
}

std::span<float> Weights::owned_fp32(int param) {
  TRAINYARD_CHECK(dtype(param) == DType::kFloat32);
  const std::span<std::byte> bytes = owned(param);
  return {reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)};
}

}  // namespace trainyard::engine

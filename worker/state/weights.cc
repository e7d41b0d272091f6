#include "worker/state/weights.h"

#include "common/base/check.h"

namespace trainyard::engine {

Result<std::unique_ptr<Weights>> Weights::create(const layout::Layout& layout, const Units& units,
                                                 MemorySource& memory) {
  auto weights = std::unique_ptr<Weights>(new Weights(layout));
  weights->dtypes_ = units.dtype;
  int64_t bytes = 0;
  for (int unit = 0; unit < layout.units(); ++unit) {
    weights->offset_.push_back(bytes);
    bytes += layout.elements(unit) * size_of(weights->unit_dtype(unit));
  }
  TRAINYARD_ASSIGN(weights->block_, memory.allocate(bytes));
  return weights;
}

std::span<std::byte> Weights::unit(int unit) {
  return block_->bytes().subspan(
      static_cast<size_t>(offset_[static_cast<size_t>(unit)]),
      static_cast<size_t>(layout_.elements(unit) * size_of(unit_dtype(unit))));
}

void* Weights::data(int param) {
  return unit(layout_.unit_of(param)).data() + layout_.place(param).begin * size_of(dtype(param));
}

std::span<float> Weights::fp32(int param) {
  TRAINYARD_CHECK(dtype(param) == DType::kFloat32);
  return {static_cast<float*>(data(param)), static_cast<size_t>(layout_.place(param).size())};
}

}  // namespace trainyard::engine

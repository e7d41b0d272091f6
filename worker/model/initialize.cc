#include "worker/model/initialize.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/random/philox.h"
#include "worker/model/normal.h"

namespace trainyard::engine {
void initialize_slice(const ParamSpec& param, uint64_t seed, const layout::Rectangle& slice,
                      std::span<float> out) {
  TRAINYARD_CHECK(static_cast<int64_t>(out.size()) == slice.elements());
  const auto& shape = param.tensor.shape;
  const int64_t row_elements = param.elements() / shape[0];
  const uint64_t mixed = mix64(mix64(seed) ^ param.init_key);
  const std::array<uint32_t, 2> key = {static_cast<uint32_t>(mixed),
                                       static_cast<uint32_t>(mixed >> 32)};
  const int64_t columns = slice.elements() / std::max<int64_t>(slice.shape[0], 1);
  const int64_t column_offset = shape.size() > 1 ? slice.offset[1] : 0;
  for (int64_t r = 0; r < slice.shape[0]; ++r) {
    const int64_t row = slice.offset[0] + r;
    const auto values = out.subspan(static_cast<size_t>(r * columns), static_cast<size_t>(columns));
    const bool padding = param.unpadded_rows > 0 && row >= param.unpadded_rows;
    if (padding || param.init.kind == Init::Kind::kZeros) {
      std::fill(values.begin(), values.end(), 0.0F);
    } else if (param.init.kind == Init::Kind::kOnes) {
      std::fill(values.begin(), values.end(), 1.0F);
    } else {
      const auto element = static_cast<uint64_t>(row * row_elements + column_offset);
      fill_normal(key, element, param.init.standard_deviation, values);
    }
  }
}

}  // namespace trainyard::engine

#include "worker/model/initialize.h"

#include <cmath>

#include "common/base/check.h"
#include "common/math/portable.h"
#include "common/random/philox.h"

namespace trainyard::engine {
namespace {

/// A standard normal for global element `element`: Box-Muller on 53-bit uniforms. Each element
/// takes one Philox block, so elements are independent of each other and of order.
double standard_normal(std::array<uint32_t, 2> key, uint64_t element) {
  const auto words =
      philox4x32({static_cast<uint32_t>(element), static_cast<uint32_t>(element >> 32), 0, 0}, key);
  const auto uniform = [](uint32_t high, uint32_t low) {
    const uint64_t bits = (uint64_t{high} << 21) ^ (low >> 11);
    return (static_cast<double>(bits & 0x1FFFFFFFFFFFFF) + 0.5) * 0x1p-53;
  };
  const double radius = std::sqrt(-2 * portable_log(uniform(words[0], words[1])));
  return radius * portable_cos_pi(2 * uniform(words[2], words[3]));
}

}  // namespace

void initialize_slice(const ParamSpec& param, uint64_t seed, const layout::Slice& slice,
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
    const bool padding = param.unpadded_rows > 0 && row >= param.unpadded_rows;
    for (int64_t c = 0; c < columns; ++c) {
      float value = 0;
      if (!padding && param.init.kind == Init::Kind::kOnes) value = 1;
      if (!padding && param.init.kind == Init::Kind::kNormal) {
        const auto element = static_cast<uint64_t>(row * row_elements + column_offset + c);
        value = static_cast<float>(param.init.standard_deviation * standard_normal(key, element));
      }
      out[static_cast<size_t>(r * columns + c)] = value;
    }
  }
}

}  // namespace trainyard::engine

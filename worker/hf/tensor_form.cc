#include "worker/hf/tensor_form.h"

#include <algorithm>

namespace trainyard::hf {
namespace {

// The width of a cache line of floats: each tile is read and written in whole lines.
constexpr int64_t kTile = 16;

}  // namespace

std::vector<int64_t> stored_shape(const engine::ParamSpec& param,
                                  const engine::HuggingFaceTensor& tensor) {
  std::vector<int64_t> shape = param.tensor.shape;
  shape[0] = tensor.rows;
  if (param.hugging_face_transposed) std::swap(shape[0], shape[1]);
  return shape;
}

int64_t row_elements(const engine::ParamSpec& param) {
  return param.elements() / param.tensor.shape[0];
}

void transpose(const float* from, int64_t rows, int64_t columns, float* to) {
  for (int64_t row0 = 0; row0 < rows; row0 += kTile) {
    for (int64_t column0 = 0; column0 < columns; column0 += kTile) {
      const int64_t row1 = std::min(row0 + kTile, rows);
      const int64_t column1 = std::min(column0 + kTile, columns);
      for (int64_t row = row0; row < row1; ++row) {
        for (int64_t column = column0; column < column1; ++column) {
          to[column * rows + row] = from[row * columns + column];
        }
      }
    }
  }
}

}  // namespace trainyard::hf

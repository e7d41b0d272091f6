#include "worker/checkpoint/partition.h"

#include <algorithm>

#include "common/base/check.h"

namespace trainyard::checkpoint {

std::vector<std::optional<Rectangle>> balanced_rows(std::span<const std::vector<int64_t>> shapes,
                                                    std::span<const int64_t> element_bytes,
                                                    int rank, int size) {
  TRAINYARD_CHECK(shapes.size() == element_bytes.size() && 0 <= rank && rank < size);
  // All tensors' bytes form one line; rank r writes what begins in [total r/size, total
  // (r+1)/size). A row belongs to the rank in whose part of the line it begins.
  std::vector<int64_t> row_bytes(shapes.size());
  int64_t total = 0;
  for (size_t i = 0; i < shapes.size(); ++i) {
    row_bytes[i] = element_bytes[i];
    for (size_t axis = 1; axis < shapes[i].size(); ++axis)
      row_bytes[i] *= shapes[i][axis];
    total += row_bytes[i] * (shapes[i].empty() ? 1 : shapes[i][0]);
  }
  const auto cut = [&](int64_t r) {  // floor(total r / size) without overflow
    return total / size * r + total % size * r / size;
  };
  const int64_t begin = cut(rank);
  const int64_t end = cut(rank + 1);
  std::vector<std::optional<Rectangle>> parts(shapes.size());
  int64_t position = 0;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const int64_t rows = shapes[i].empty() ? 1 : shapes[i][0];
    const auto first_row_at = [&](int64_t target) {
      const int64_t relative = target - position;
      return std::clamp((relative + row_bytes[i] - 1) / row_bytes[i], int64_t{0}, rows);
    };
    const int64_t first = begin <= position ? 0 : first_row_at(begin);
    const int64_t last = end <= position ? 0 : first_row_at(end);
    if (first < last) {
      Rectangle part{std::vector<int64_t>(shapes[i].size(), 0), shapes[i]};
      if (!shapes[i].empty()) {
        part.offset[0] = first;
        part.shape[0] = last - first;
      }
      parts[i] = std::move(part);
    }
    position += rows * row_bytes[i];
  }
  return parts;
}

}  // namespace trainyard::checkpoint

#include "worker/matrix/covering.h"

#include <cstddef>
#include <set>
#include <utility>

namespace trainyard::matrix {
namespace {

using Value = std::pair<int, int>;  // axis, index

std::pair<Value, Value> pair_of(Value a, Value b) {
  return a < b ? std::pair(a, b) : std::pair(b, a);
}

}  // namespace

std::vector<std::vector<int>> covering_array(const std::vector<int>& sizes) {
  const auto axes = static_cast<int>(sizes.size());
  std::set<std::pair<Value, Value>> open;
  for (int a = 0; a < axes; ++a) {
    for (int b = a + 1; b < axes; ++b) {
      for (int i = 0; i < sizes[static_cast<size_t>(a)]; ++i) {
        for (int k = 0; k < sizes[static_cast<size_t>(b)]; ++k)
          open.insert({{a, i}, {b, k}});
      }
    }
  }
  std::vector<std::vector<int>> rows;
  if (axes == 1) return product(sizes);
  while (!open.empty()) {
    const auto [first, second] = *open.begin();
    std::vector<Value> chosen = {first, second};
    for (int axis = 0; axis < axes; ++axis) {
      if (axis == first.first || axis == second.first) continue;
      // The value that covers most with those chosen; of equal ones another in each row.
      const int size = sizes[static_cast<size_t>(axis)];
      Value best{axis, 0};
      int most = -1;
      for (int k = 0; k < size; ++k) {
        const Value value{axis, (k + static_cast<int>(rows.size())) % size};
        int covers = 0;
        for (const Value& other : chosen)
          covers += static_cast<int>(open.count(pair_of(value, other)));
        if (covers > most) {
          most = covers;
          best = value;
        }
      }
      chosen.push_back(best);
    }
    std::vector<int> row(static_cast<size_t>(axes));
    for (const Value& value : chosen) {
      row[static_cast<size_t>(value.first)] = value.second;
      for (const Value& other : chosen) {
        if (value.first < other.first) open.erase({value, other});
      }
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<std::vector<int>> product(const std::vector<int>& sizes) {
  std::vector<std::vector<int>> rows = {{}};
  for (const int size : sizes) {
    std::vector<std::vector<int>> longer;
    for (const std::vector<int>& row : rows) {
      for (int i = 0; i < size; ++i) {
        longer.push_back(row);
        longer.back().push_back(i);
      }
    }
    rows = std::move(longer);
  }
  return rows;
}

}  // namespace trainyard::matrix

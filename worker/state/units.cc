#include "worker/state/units.h"

#include <algorithm>
#include <numeric>
#include <optional>

namespace trainyard::engine {
namespace {

/// The lowest layer that uses each parameter: the last to add to its gradient.
std::vector<int> lowest_layers(const Model& model) {
  std::vector<int> lowest(model.params.size(), static_cast<int>(model.layers.size()));
  for (int l = static_cast<int>(model.layers.size()); l-- > 0;) {
    for (const Node& node : model.layers[static_cast<size_t>(l)].nodes) {
      for (const int param : node.params)
        lowest[static_cast<size_t>(param)] = l;
    }
  }
  return lowest;
}

}  // namespace

Units make_units(const Model& model, DType compute, int64_t unit_bytes) {
  struct Unit {
    std::vector<int> params;
    DType dtype;
    int ready_layer;
    int64_t bytes;
  };
  const std::vector<int> lowest = lowest_layers(model);
  std::vector<int> order(model.params.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return lowest[static_cast<size_t>(a)] > lowest[static_cast<size_t>(b)];
  });
  std::vector<Unit> all;
  std::optional<size_t> open[2];  // of vectors and of matrices
  for (const int param : order) {
    const ParamSpec& spec = model.params[static_cast<size_t>(param)];
    const DType dtype = spec.tensor.shape.size() > 1 ? compute : DType::kFloat32;
    const bool tied = !spec.tie_group.empty();
    std::optional<size_t>& at = open[dtype == compute ? 1 : 0];
    if (!at || tied || all[*at].bytes >= unit_bytes) {
      all.push_back({.params = {}, .dtype = dtype, .ready_layer = 0, .bytes = 0});
      at = all.size() - 1;
    }
    Unit& unit = all[*at];
    unit.params.push_back(param);
    unit.bytes += spec.elements() * static_cast<int64_t>(sizeof(int64_t));
    unit.ready_layer = lowest[static_cast<size_t>(param)];
    if (tied) at.reset();
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Unit& a, const Unit& b) { return a.ready_layer > b.ready_layer; });
  Units units;
  for (Unit& unit : all) {
    units.params.push_back(std::move(unit.params));
    units.dtype.push_back(unit.dtype);
    units.ready_layer.push_back(unit.ready_layer);
  }
  return units;
}

}  // namespace trainyard::engine

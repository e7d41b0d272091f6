#include "worker/state/units.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

namespace trainyard::engine {
namespace {

/// By parameter the layers that use it, ascending.
std::vector<std::vector<int>> layers_of_params(const Model& model) {
  std::vector<std::vector<int>> layers(model.params.size());
  for (int l = 0; l < static_cast<int>(model.layers.size()); ++l) {
    for (const Node& node : model.layers[static_cast<size_t>(l)].nodes) {
      for (const int param : node.params) {
        std::vector<int>& users = layers[static_cast<size_t>(param)];
        if (users.empty() || users.back() != l) users.push_back(l);
      }
    }
  }
  return layers;
}

}  // namespace

Units make_units(const Model& model, DType compute, int64_t unit_bytes) {
  struct Unit {
    std::vector<int> params;
    DType dtype;
    std::set<int> layers;
    int lowest;
    int64_t bytes;
  };
  const std::vector<std::vector<int>> layers = layers_of_params(model);
  // The last to add to the gradient; nobody adds to that of what no op uses.
  const auto lowest = [&](int param) {
    const std::vector<int>& users = layers[static_cast<size_t>(param)];
    return users.empty() ? static_cast<int>(model.layers.size()) : users.front();
  };
  std::vector<int> order(model.params.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return lowest(a) > lowest(b); });
  std::vector<Unit> all;
  std::optional<size_t> open[2];  // of vectors and of matrices
  for (const int param : order) {
    const ParamSpec& spec = model.params[static_cast<size_t>(param)];
    const DType dtype = spec.tensor.shape.size() > 1 ? compute : DType::kFloat32;
    const bool tied = !spec.tie_group.empty();
    std::optional<size_t>& at = open[dtype == compute ? 1 : 0];
    if (!at || tied || all[*at].bytes >= unit_bytes) {
      all.push_back({.params = {}, .dtype = dtype, .layers = {}, .lowest = 0, .bytes = 0});
      at = all.size() - 1;
    }
    Unit& unit = all[*at];
    unit.params.push_back(param);
    unit.bytes += spec.elements() * static_cast<int64_t>(sizeof(int64_t));
    unit.layers.insert(layers[static_cast<size_t>(param)].begin(),
                       layers[static_cast<size_t>(param)].end());
    unit.lowest = lowest(param);
    if (tied) at.reset();
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Unit& a, const Unit& b) { return a.lowest > b.lowest; });
  Units units;
  for (Unit& unit : all) {
    units.params.push_back(std::move(unit.params));
    units.dtype.push_back(unit.dtype);
    units.layers.emplace_back(unit.layers.begin(), unit.layers.end());
  }
  return units;
}

DType compute_type(const api::PrecisionSpec& precision) {
  return precision.compute == api::NumberFormat::kBF16 ? DType::kBFloat16 : DType::kFloat32;
}

Result<layout::Layout> make_layout(const Model& model, const Units& units,
                                   const api::ParallelismSpec& parallelism,
                                   const layout::Mesh& mesh) {
  std::vector<layout::TensorSpec> tensors;
  for (const ParamSpec& param : model.params)
    tensors.push_back(param.tensor);
  const bool one_holds_all = parallelism.mode == api::ParallelMode::kDataParallel;
  return layout::Layout::make(
      std::move(tensors), units.params, mesh, static_cast<int>(parallelism.zero_stage),
      one_holds_all ? layout::Ownership::kFirst : layout::Ownership::kShared);
}

}  // namespace trainyard::engine

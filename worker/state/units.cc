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

std::vector<layout::Unit> make_units(const Model& model, DType compute, int64_t unit_bytes,
                                     const layout::StageMap& map, bool slices) {
  const std::vector<std::vector<int>> users = layers_of_params(model);
  // The last to add to the gradient; nobody adds to that of what no op uses.
  const auto lowest = [&](int param) {
    const std::vector<int>& layers = users[static_cast<size_t>(param)];
    return layers.empty() ? static_cast<int>(model.layers.size()) : layers.front();
  };
  const auto stages_of = [&](int param) {
    std::set<int> stages;
    for (const int layer : users[static_cast<size_t>(param)])
      stages.insert(map.pp_of(map.stage_of(layer)));
    if (stages.empty()) stages.insert(map.ranks() - 1);
    return std::vector<int>(stages.begin(), stages.end());
  };
  std::vector<int> order(model.params.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return lowest(a) > lowest(b); });
  std::vector<layout::Unit> units;
  struct Open {
    size_t unit;
    int64_t bytes = 0;
  };
  // Of those always in fp32, and of the others; then the same of what is summed over tensor ranks.
  std::optional<Open> open[4];
  for (const int param : order) {
    const ParamSpec& spec = model.params[static_cast<size_t>(param)];
    const DType dtype = spec.read == ParamRead::kCompute ? compute : DType::kFloat32;
    const std::vector<int> stages = stages_of(param);
    const bool summed = slices && spec.tensor.cut.segments.empty();
    std::optional<Open>& at = open[(dtype == compute ? 1 : 0) + (summed ? 2 : 0)];
    if (!at || spec.tied || at->bytes >= unit_bytes || units[at->unit].stages != stages) {
      at = Open{.unit = units.size()};
      units.push_back({.dtype = dtype, .stages = stages, .summed_over_tensor = summed});
    }
    layout::Unit& unit = units[at->unit];
    unit.tensors.push_back(param);
    const std::vector<int>& layers = users[static_cast<size_t>(param)];
    unit.layers.insert(unit.layers.end(), layers.begin(), layers.end());
    at->bytes += spec.elements() * static_cast<int64_t>(sizeof(int64_t));
    if (spec.tied) at.reset();
  }
  for (layout::Unit& unit : units) {
    std::sort(unit.layers.begin(), unit.layers.end());
    unit.layers.erase(std::unique(unit.layers.begin(), unit.layers.end()), unit.layers.end());
  }
  // By the parameter that is completed last.
  std::stable_sort(units.begin(), units.end(), [&](const layout::Unit& a, const layout::Unit& b) {
    return lowest(a.tensors.back()) > lowest(b.tensors.back());
  });
  return units;
}

DType compute_type(const api::PrecisionSpec& precision) {
  return precision.compute == api::NumberFormat::kBF16 ? DType::kBFloat16 : DType::kFloat32;
}

DType sum_type(const api::NumericsSpec& numerics) {
  return numerics.mode == api::NumericsMode::kFast ? DType::kFloat32 : DType::kInt64;
}

Result<layout::Layout> make_layout(const Model& model, std::vector<layout::Unit> units,
                                   const api::ParallelismSpec& parallelism,
                                   const layout::Mesh& mesh) {
  std::vector<layout::TensorSpec> tensors;
  for (const ParamSpec& param : model.params)
    tensors.push_back(param.tensor);
  const bool one_holds_all = parallelism.mode == api::ParallelMode::kDataParallel;
  return layout::Layout::make(
      std::move(tensors), std::move(units), mesh, static_cast<int>(parallelism.zero_stage),
      one_holds_all ? layout::Ownership::kFirst : layout::Ownership::kShared);
}

}  // namespace trainyard::engine

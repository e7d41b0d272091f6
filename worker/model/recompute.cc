#include "worker/model/recompute.h"

#include <algorithm>
#include <cstddef>

namespace trainyard::engine {
namespace {

/// By value of a layer: whether its backward passes read it.
std::vector<bool> read_in_backward(const Layer& layer) {
  std::vector<bool> read(layer.values.size());
  for (const Node& node : layer.nodes) {
    const BackwardUses uses = node.op->backward_uses();
    const bool reads_weights = uses.input_in_backward_weight && !node.params.empty();
    if (uses.input_in_backward_input || reads_weights) {
      for (const int value : node.inputs)
        read[static_cast<size_t>(value)] = true;
    }
    if (!uses.output_in_backward_input) continue;
    for (const int value : node.outputs)
      read[static_cast<size_t>(value)] = true;
  }
  return read;
}

/// By value of a layer: whether nothing but cheap ops writes its memory. Ops in place run again
/// together with what they work on, or not at all.
std::vector<bool> cheap_to_write(const Layer& layer) {
  std::vector<bool> cheap(layer.values.size(), true);
  const auto first = [&](int value) {
    int at = value;
    while (layer.values[static_cast<size_t>(at)].alias_of >= 0)
      at = layer.values[static_cast<size_t>(at)].alias_of;
    return static_cast<size_t>(at);
  };
  for (const Node& node : layer.nodes) {
    for (const int value : node.outputs) {
      if (!node.op->is_cheap()) cheap[first(value)] = false;
    }
  }
  for (size_t value = 0; value < cheap.size(); ++value)
    cheap[value] = cheap[first(static_cast<int>(value))];
  return cheap;
}

}  // namespace

std::vector<int> recomputed_nodes(const Layer& layer, api::Recompute recompute) {
  if (recompute == api::Recompute::kNone || layer.has_loss()) return {};
  std::vector<bool> wanted = read_in_backward(layer);
  const std::vector<bool> cheap = cheap_to_write(layer);
  std::vector<int> nodes;
  for (auto n = static_cast<int>(layer.nodes.size()) - 1; n >= 0; --n) {
    const Node& node = layer.nodes[static_cast<size_t>(n)];
    const bool is_wanted = node.op->saved_count() > 0 ||
                           std::any_of(node.outputs.begin(), node.outputs.end(), [&](int value) {
                             return wanted[static_cast<size_t>(value)];
                           });
    const bool ends_layer =
        std::find(node.outputs.begin(), node.outputs.end(), layer.output) != node.outputs.end();
    const bool may = recompute == api::Recompute::kFull ||
                     std::all_of(node.outputs.begin(), node.outputs.end(),
                                 [&](int value) { return cheap[static_cast<size_t>(value)]; });
    if (!is_wanted || ends_layer || !may) continue;
    nodes.push_back(n);
    for (const int value : node.inputs)
      wanted[static_cast<size_t>(value)] = true;
  }
  std::reverse(nodes.begin(), nodes.end());
  return nodes;
}

std::vector<int> recomputed_layers(const Model& model, api::Recompute recompute) {
  std::vector<int> layers;
  for (int layer = 0; layer < std::ssize(model.layers); ++layer) {
    if (!recomputed_nodes(model.layers[static_cast<size_t>(layer)], recompute).empty())
      layers.push_back(layer);
  }
  return layers;
}

OpFlops flops_of(const Model& model, const Layer& layer, const OpExtent& extent,
                 api::Recompute recompute) {
  OpFlops flops = flops_of(model, layer, extent);
  for (const int n : recomputed_nodes(layer, recompute)) {
    const Node& node = layer.nodes[static_cast<size_t>(n)];
    flops.recompute += node.op->flops(extent_of(model, node, extent)).forward;
  }
  return flops;
}

}  // namespace trainyard::engine

#include "worker/model/parallelize.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "worker/model/ops/head_exchange.h"
#include "worker/model/ops/key_gather.h"
#include "worker/model/ops/linear.h"

namespace trainyard::engine {
namespace {

bool is_shared_out(const Layer& layer, const std::vector<int>& values) {
  return std::any_of(values.begin(), values.end(), [&](int value) {
    return !layer.values[static_cast<size_t>(value)].segments.empty();
  });
}

/// Around each op that reads other positions than its own.
Status share_positions(Model& model, const TensorShare& context) {
  model.context = context;
  for (Layer& layer : model.layers) {
    std::vector<Node> nodes;
    for (Node& node : layer.nodes) {
      const std::optional<HeadColumns> heads = node.op->head_columns();
      if (!heads) {
        nodes.push_back(std::move(node));
        continue;
      }
      std::unique_ptr<Op> part = node.op->part(context);
      if (!part) {
        return Error{ErrorCode::kInvalidConfig,
                     "engine.parallelism.context: found " + std::to_string(context.size) +
                         ", wanted a divisor of the heads and key-value heads of a tensor rank"};
      }
      const auto add_value = [&](int of) {
        Value whole = layer.values[static_cast<size_t>(of)];
        whole.alias_of = -1;
        whole.rows = RowSpace::kWhole;
        whole.columns /= context.size;
        layer.values.push_back(std::move(whole));
        return static_cast<int>(layer.values.size()) - 1;
      };
      const auto exchange = [&](const std::vector<int64_t>& segments, int all, bool to_heads) {
        const bool computes =
            layer.values[static_cast<size_t>(all)].gradient_type == ValueType::kCompute;
        return std::make_unique<HeadExchange>(
            HeadExchangeShape{.segments = segments,
                              .ranks = context.size,
                              .to_heads = to_heads,
                              .gradient = computes ? &kernels::DeviceFormats::compute
                                                   : &kernels::DeviceFormats::gradient});
      };
      const int in = node.inputs.front();
      const int out = node.outputs.front();
      const int all_in = add_value(in);
      const int all_out = add_value(out);
      nodes.push_back({exchange(heads->input, in, true), {in}, {all_in}});
      nodes.push_back({.op = std::move(part),
                       .inputs = {all_in},
                       .outputs = {all_out},
                       .rows = RowSpace::kWhole});
      nodes.push_back({exchange(heads->output, out, false), {all_out}, {out}});
    }
    layer.nodes = std::move(nodes);
  }
  return {};
}

/// The same where positions are handed around.
Status share_ring(Model& model, const TensorShare& context) {
  model.context = context;
  for (Layer& layer : model.layers) {
    for (Node& node : layer.nodes) {
      if (!node.op->head_columns()) continue;
      std::unique_ptr<Op> ring = node.op->over_ring(context);
      if (!ring) {
        return Error{ErrorCode::kInvalidConfig,
                     "engine.parallelism.context: found " + std::to_string(context.size) +
                         ", wanted 1 where tensor ranks share key-value heads"};
      }
      node.op = std::move(ring);
    }
  }
  return {};
}

/// Of tensor ranks that are more than the key heads, each makes its columns of the keys and values
/// of one of them, and gathers the rest: what reads packed projections reads those of a whole head
/// then, as if there were as many key heads as ranks.
void gather_keys(Layer& layer, const TensorShare& share) {
  const auto shares_keys = [&](const Node& node) {
    const std::optional<HeadsShape> heads = node.op->packed_heads();
    return heads && heads->sharers(share.size) > 1;
  };
  const auto reader = std::ranges::find_if(layer.nodes, shares_keys);
  if (reader == layer.nodes.end()) return;
  const HeadsShape heads = *reader->op->packed_heads();
  const int gathered = reader->inputs.front();
  const auto made = static_cast<int>(layer.values.size());
  layer.values.push_back(layer.values[static_cast<size_t>(gathered)]);
  for (Node& node : layer.nodes)
    std::ranges::replace(node.outputs, gathered, made);
  for (Node& node : layer.nodes) {
    if (!shares_keys(node)) continue;
    Value& value = layer.values[static_cast<size_t>(node.inputs.front())];
    value.segments = {heads.heads * heads.head_dim, share.size * heads.head_dim,
                      share.size * heads.head_dim};
  }
  layer.nodes.insert(
      reader,
      Node{.op = std::make_unique<KeyGather>(heads), .inputs = {made}, .outputs = {gathered}});
}

/// Among tensor ranks.
Status share_layers(Model& model, const TensorShare& share) {
  model.share = share;
  for (Layer& layer : model.layers) {
    gather_keys(layer, share);
    for (Node& node : layer.nodes) {
      std::unique_ptr<Op> part = node.op->part(share);
      const bool must = is_shared_out(layer, node.inputs) || is_shared_out(layer, node.outputs);
      if (!part && must) {
        return Error{ErrorCode::kInvalidConfig,
                     "engine.parallelism.tensor: found " + std::to_string(share.size) +
                         ", wanted 1: this family has an operation that tensor ranks cannot share"};
      }
      if (share.slices && !part) node.rows = RowSpace::kSlice;
      if (part) node.op = std::move(part);
    }
    for (Value& value : layer.values) {
      if (share.slices && value.segments.empty()) value.rows = RowSpace::kSlice;
      if (!value.segments.empty()) value.columns = length_of(parts_of(value.segments, share));
    }
  }
  return {};
}

}  // namespace

Result<Model> parallelize(Model model, const layout::Mesh& mesh, const layout::Coordinate& at) {
  if (mesh.tp > 1) {
    TRAINYARD_TRY(share_layers(model, {.size = mesh.tp, .rank = at.tp, .slices = mesh.slices}));
  }
  if (mesh.cp > 1 && mesh.ring) {
    TRAINYARD_TRY(share_ring(model, {.size = mesh.cp, .rank = at.cp, .ring = true}));
  } else if (mesh.cp > 1) {
    TRAINYARD_TRY(share_positions(model, {.size = mesh.cp, .rank = at.cp}));
  }
  return model;
}

}  // namespace trainyard::engine

#pragma once

#include <cstdint>
#include <vector>

#include "common/api/engine_spec.h"
#include "worker/model/model.h"

/// Activations that are computed again in the backward pass instead of kept (Chen et al. 2016,
/// "Training Deep Nets with Sublinear Memory Cost").
namespace trainyard::engine {

/// The nodes of a layer that run again before its B, ascending. Full: all whose outputs or saved
/// buffers its backward passes read, and those that these need. Selective: of the former those with
/// Op::is_cheap(). Never the node that writes the layer's output, and none of a layer with a loss,
/// which goes forward within its backward pass.
std::vector<int> recomputed_nodes(const Layer& layer, api::Recompute recompute);

/// Ascending: the layers that have any.
std::vector<int> recomputed_layers(const Model& model, api::Recompute recompute);

/// flops_of() with OpFlops::recompute.
OpFlops flops_of(const Model& model, const Layer& layer, const OpExtent& extent,
                 api::Recompute recompute);

}  // namespace trainyard::engine

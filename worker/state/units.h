#pragma once

#include <cstdint>
#include <vector>

#include "common/api/engine_spec.h"
#include "common/base/dtype.h"
#include "common/base/error.h"
#include "common/layout/layout.h"
#include "worker/model/model.h"

namespace trainyard::engine {

/// The parameters of a model by units (layout::Layout), in the order in which backward completes
/// their gradients.
struct Units {
  std::vector<std::vector<int>> params;  ///< by unit: indexes into Model::params
  std::vector<DType> dtype;              ///< by unit: of the weights that ops read
  /// By unit: the layers that read it and add to its gradient, ascending; none where no op uses
  /// what is in it.
  std::vector<std::vector<int>> layers;
};

/// A unit is closed once its accumulators reach `unit_bytes`: smaller overlaps better, larger costs
/// fewer messages. Ops read matrices in `compute`, vectors (norms, biases) in fp32. A tied
/// parameter is a unit of its own.
Units make_units(const Model& model, DType compute, int64_t unit_bytes);

/// The element type of matrices that a job computes in.
DType compute_type(const api::PrecisionSpec& precision);

/// How a job cuts the model's units over `mesh`. Errors: those of layout::Layout::make.
Result<layout::Layout> make_layout(const Model& model, const Units& units,
                                   const api::ParallelismSpec& parallelism,
                                   const layout::Mesh& mesh);

}  // namespace trainyard::engine

#pragma once

#include <cstdint>
#include <vector>

#include "common/api/engine_spec.h"
#include "common/base/dtype.h"
#include "common/base/error.h"
#include "common/layout/layout.h"
#include "common/layout/stage_map.h"
#include "worker/model/model.h"

namespace trainyard::engine {

/// The parameters of a model by units, in the order in which backward completes their gradients. A
/// unit is closed once its accumulators reach `unit_bytes`: smaller overlaps better, larger costs
/// fewer messages. It is closed as well where a stage ends. Ops read parameters in `compute` or
/// in fp32, as ParamSpec::read says. A tied parameter is a unit of its own, on every stage that
/// uses it. Where tensor ranks have `slices` of sequences (layout::Mesh), what each of them has
/// whole is in units of its own, which are summed over them.
std::vector<layout::Unit> make_units(const Model& model, DType compute, int64_t unit_bytes,
                                     const layout::StageMap& map, bool slices = false);

/// The element type of matrices that a job computes in.
DType compute_type(const api::PrecisionSpec& precision);

/// The element type of gradient sums: exact ones, or with numerics Fast fp32 ones.
DType sum_type(const api::NumericsSpec& numerics);

/// How a job cuts the model's units over `mesh`. Errors: those of layout::Layout::make.
Result<layout::Layout> make_layout(const Model& model, std::vector<layout::Unit> units,
                                   const api::ParallelismSpec& parallelism,
                                   const layout::Mesh& mesh);

}  // namespace trainyard::engine

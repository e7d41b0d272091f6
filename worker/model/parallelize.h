#pragma once

#include "common/base/error.h"
#include "common/layout/mesh.h"
#include "worker/model/model.h"

namespace trainyard::engine {

/// The model as the rank at `at` runs it: what tensor ranks share out of its ops and values is this
/// rank's part, and its ops meet those of the other tensor ranks (TensorMeeting). Where these have
/// slices of sequences, all other ops and values are of this rank's slices. Where context ranks
/// share every sequence, all ops and values are of this rank's positions; an op that reads other
/// positions has all of them of its part of the heads, between two exchanges (HeadExchange), or in
/// a ring of all heads those that it is handed (RingAttention).
/// Parameters keep their global shapes; layout::Layout says what of them is here. The only place
/// where models meet the strategy: without tensor and context ranks the model stays as it is. The
/// sums of a model of several tensor ranks are cut (numerics.tensorChunks), as validation wants it.
/// Errors: kInvalidConfig where an op cannot be shared out.
Result<Model> parallelize(Model model, const layout::Mesh& mesh, const layout::Coordinate& at);

}  // namespace trainyard::engine

#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/api/engine_spec.h"
#include "common/base/error.h"
#include "worker/data/dataset.h"
#include "worker/job/inputs.h"

namespace trainyard::engine {

/// Completes a spec with what only the data and an imported model know, and turns Auto into what it
/// means here: model sizes (import), vocabulary (token shards), positions and sequence length,
/// numerics (those of the checkpoint that the run goes on from, where the spec names none), layer
/// norm epsilon. Of the device resolve_device() says. Errors: kInvalidConfig naming the field when
/// the manifest contradicts the import, the data or how the work is divided.
Status resolve_spec(api::EngineSpec& spec, const Inputs& inputs);

/// The same of a new run where the spec or the import gives the vocabulary: without a look at the
/// data. `imported`: the import's shape, if there is one.
Status resolve_spec(api::EngineSpec& spec, const std::optional<api::ModelSpec>& imported);

/// Refuses held-out tokens that the model has no rows for, or that another tokenizer made than
/// `training`'s (null where that is not known): their loss would mean nothing. `what` names them in
/// the error, a field or a path. Errors: kInvalidConfig.
Status check_held_out(const data::TokenSet& held_out, const data::TokenSet* training, int64_t vocab,
                      const std::string& what);

}  // namespace trainyard::engine

#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/api/engine_spec.h"
#include "common/base/error.h"
#include "worker/data/dataset.h"

namespace trainyard::engine {

/// Completes a spec with what only the data and an imported model know, and turns Auto into what it
/// means here: model sizes (import), vocabulary (token shards), positions and sequence length,
/// numerics, layer norm epsilon. `imported`: the import's shape, if there is one. Errors:
/// kInvalidConfig naming the field when the manifest contradicts the import or the data.
Status resolve_spec(api::EngineSpec& spec, const data::TokenSet& tokens,
                    const std::optional<api::ModelSpec>& imported);

/// The same where the spec or the import gives the vocabulary: without a look at the data.
Status resolve_spec(api::EngineSpec& spec, const std::optional<api::ModelSpec>& imported);

/// Refuses held-out tokens that the model has no rows for, or that another tokenizer made than
/// `training`'s (null where that is not known): their loss would mean nothing. `what` names them in
/// the error, a field or a path. Errors: kInvalidConfig.
Status check_held_out(const data::TokenSet& held_out, const data::TokenSet* training, int64_t vocab,
                      const std::string& what);

}  // namespace trainyard::engine

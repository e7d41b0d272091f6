#pragma once

#include <filesystem>

#include "common/api/engine_spec.h"
#include "common/base/error.h"

namespace trainyard::cli {

/// Tokens per second at which this machine trains a model on the token shards at `tokens`: measured
/// for some 2 s, after a first step at least one step long, in this process with all processors
/// that it may use. `spec` needs model, sequence length and batch, and is trained with two
/// micro-batches per step at most. Errors: those of the token shards, of resolve_spec(),
/// check_memory() and the engine.
Result<double> measured_rate(api::EngineSpec spec, const std::filesystem::path& tokens);

}  // namespace trainyard::cli

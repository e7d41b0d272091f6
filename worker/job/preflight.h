#pragma once

#include "common/api/engine_spec.h"
#include "common/api/training_job.h"
#include "common/base/error.h"
#include "worker/job/inputs.h"

/// What the ranks of a job would refuse at their start, found out before there is a job: the same
/// checks as theirs, on the same files, without allocating a model.
namespace trainyard::engine {

/// Whether every file that the spec names as input (tokens, validation, import) is on this machine.
bool sees_inputs(const api::EngineSpec& spec);

/// Shapes and batches that no rank accepts, whatever the data. Errors: kInvalidConfig naming the
/// field.
Status check_shapes(const api::EngineSpec& spec, int64_t ranks);

/// check_shapes, then the inputs: they fit each other, the spec and its tokenizer (where that is on
/// this machine), and hold at least one sample each. Errors: kInvalidConfig where the manifest
/// contradicts its data; kInvalidData and kIo for the tokenizer.
Status check_inputs(const api::EngineSpec& spec, const Inputs& inputs, int64_t ranks);

/// Whether the export may be written where the spec wants it (check_export), before the spec is
/// resolved. Errors: as resolve_spec and check_export.
Status check_export_place(const api::EngineSpec& spec, const Inputs& inputs,
                          const hf::ExportOwner& owner);

/// Whether a job's pods have the memory that its ranks need (check_pod_memory), where the manifest
/// sets a limit and its sizes are known: from `inputs` (null: they are elsewhere), or without them.
/// Returns a warning: memory that is too little but not refused, or sharding_doubt(). Errors:
/// kInvalidConfig naming the sizes and what to change.
Result<std::string> check_pods(const api::TrainingJobSpec& job, const Inputs* inputs);

}  // namespace trainyard::engine

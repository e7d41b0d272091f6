#pragma once

#include <string>

#include "common/api/training_job.h"

/// From the structs to JSON; decode.h reads it back to equal structs. Members stand in the order of
/// the field tables, absent values and empty texts and lists are left out, so equal structs give
/// equal bytes. Thread-safe.
namespace trainyard::api {

/// Whether the text is for machines (one line) or people (indented by two).
enum class JsonStyle { kCompact, kIndented };

/// The whole object: apiVersion, kind, metadata, spec, status.
std::string encode_training_job(const TrainingJob& job, JsonStyle style = JsonStyle::kCompact);
/// The spec alone.
std::string encode_spec(const TrainingJobSpec& spec, JsonStyle style = JsonStyle::kCompact);
/// The status alone.
std::string encode_status(const TrainingJobStatus& status, JsonStyle style = JsonStyle::kCompact);
/// The engine alone, defaults written out.
std::string encode_engine(const EngineSpec& engine, JsonStyle style = JsonStyle::kCompact);
/// The checkpoint policy alone, defaults written out.
std::string encode_checkpoint_policy(const CheckpointPolicy& policy,
                                     JsonStyle style = JsonStyle::kCompact);

}  // namespace trainyard::api

#pragma once

#include <string>

#include "common/api/engine_spec.h"
#include "common/text/json_writer.h"

/// How commands show what the bits of a job's run depend on. `spec` is resolved.
namespace trainyard::cli {

/// "numerics of a new run: Canonical, grainTokens 1024, keyBlock 128, tensorChunks 0". Says with
/// device Auto that these are of CPUs, and whether a checkpoint that the job starts from was read.
std::string numerics_text(const api::EngineSpec& spec, bool has_read_start);

/// The member `numerics`: `mode` and the same values.
void write_numerics(text::JsonWriter& json, const api::EngineSpec& spec);

}  // namespace trainyard::cli

#pragma once

#include "common/api/engine_spec.h"
#include "worker/model/ops/heads.h"

namespace trainyard::engine {

/// The frequencies of a complete spec, as transformers' modeling_rope_utils.py has them: in double,
/// rounded once to fp32.
RopeTable rope_table(const api::ModelSpec& spec);

}  // namespace trainyard::engine

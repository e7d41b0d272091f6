#pragma once

#include "worker/program/instruction.h"
#include "worker/trace/span.h"

namespace trainyard::engine {

/// What a trace calls an instruction.
trace::Activity activity_of(InstructionKind kind);

}  // namespace trainyard::engine

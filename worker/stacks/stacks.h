#pragma once

#include "common/base/error.h"

/// What every thread of this process is doing, for a person who asks why it hangs.
namespace trainyard::engine {

/// Makes dump_stacks possible: takes SIGUSR2 for it. Once, before threads start. Errors: kIo.
Status enable_stack_dumps();

/// Prints the stack of every thread to standard error, innermost call first. Threads are stopped
/// one by one for as long as it takes to walk their stack; one that does not answer within
/// kThreadTimeout (it sleeps in the kernel) is named without a stack. Calls do not overlap: one
/// that comes during another prints nothing. Bounded: kThreadsMax threads of kFramesMax calls.
void dump_stacks();

}  // namespace trainyard::engine

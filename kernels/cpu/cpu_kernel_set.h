#pragma once

#include <memory>

#include "common/base/error.h"
#include "kernels/cpu/cpu_limits.h"
#include "kernels/cpu/isa.h"
#include "kernels/kernel_set.h"

namespace trainyard::kernels {

/// The kernels of one instruction set on `threads` threads (the caller's and threads - 1 workers).
/// Results do not depend on either. Every call runs to its end before it returns; FTZ and DAZ are
/// set on the calling thread for its duration. One call at a time. Scratch is about 9 MiB a thread,
/// of which ordinary shapes touch a fraction. Limits of shapes: kernels/cpu/cpu_limits.h.
/// counters(): a product counts 2mnk; attention 2 T^2 H D a sample forward and twice that backward,
/// as if the causal half alone were computed once.
/// Errors: kInvalidConfig when threads is outside 1..1024; kUnavailable, naming the instruction
/// set, where `features` lack it.
Result<std::unique_ptr<KernelSet>> make_cpu_kernel_set(
    Isa isa, int threads, const ProcessorFeatures& features = this_processor());

}  // namespace trainyard::kernels

#pragma once

/// All that a CUDA kernel includes. nvcc compiles a kernel with kernels/simt/device.h, where the
/// names are CUDA's; a C++ compiler with kernels/simt/host.h, where they are the emulation's
/// (docs/concepts/cuda-emulation.md). Kernels use only what both offer: no `<<<>>>` but
/// simt::launch, no `extern __shared__` but simt::dynamic_shared, no PTX but the wrappers, no
/// functions of std::.

#include "kernels/simt/runtime.h"

#if !defined(__CUDACC__)
#include "kernels/simt/host.h"
#endif

#pragma once

#include <memory>

#include "worker/device/cuda_stream.h"
#include "worker/device/side_stream.h"

namespace trainyard::engine {

/// A stream beside `stream`, which is not owned and outlives it, of the GPU `index`.
Result<std::unique_ptr<SideStream>> make_cuda_side_stream(CudaStream& stream, int index);

}  // namespace trainyard::engine

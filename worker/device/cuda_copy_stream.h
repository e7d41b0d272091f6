#pragma once

#include <memory>

#include "common/base/error.h"
#include "worker/device/copy_stream.h"
#include "worker/device/cuda_stream.h"

namespace trainyard::engine {

/// A stream beside `stream`, of GPU `index`, which outlives it.
Result<std::unique_ptr<CopyStream>> make_cuda_copy_stream(CudaStream& stream, int index);

}  // namespace trainyard::engine

#pragma once

#include <cstdint>

#include "common/base/dtype.h"

namespace trainyard::engine {

/// The largest shapes of a job that its kernels meet on one rank: what a device lays out their
/// scratch by.
struct KernelShapes {
  int64_t rows = 0;       ///< of a micro-batch, also of an evaluation's
  int64_t sequences = 0;  ///< in it
  int64_t width = 0;      ///< of the residual stream
  int64_t widest = 0;     ///< features of a row of any projection
  int64_t heads = 0;
  int64_t head_dim = 0;
  int64_t vocab = 0;      ///< padded
  int64_t classes = 0;    ///< of the loss: the vocabulary without padding
  int64_t positions = 0;  ///< that are learnt
  int64_t rotary_positions = 0;
  int64_t matrix = 0;          ///< elements of the largest parameter
  bool bf16 = false;           ///< products read bf16, else fp32
  DType sums = DType::kInt64;  ///< of gradients, see DeviceFormats
  /// With fp32 sums: positions of the sequences whose attention may be that of a library; 0: none.
  int64_t library_attention = 0;
  /// Of exact sums that one rank rounds though tensor ranks could share them: the pieces of each,
  /// numerics.tensorChunks; 0: none.
  int64_t pieces = 0;
  /// Of exact sums: sequences whose weight gradients are one fp32 partial of an exact sum.
  int64_t grain_sequences = 1;
};

}  // namespace trainyard::engine

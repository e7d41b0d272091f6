#pragma once

#include <cstdint>
#include <span>

namespace trainyard::kernels {

/// Consecutive rows of a micro-batch: consecutive positions of one sample.
struct Sequence {
  int64_t begin = 0;     ///< its first row
  int64_t length = 0;    ///< rows, at least 1
  int64_t ordinal = 0;   ///< run-wide number of the sample: a key of dropout
  int64_t position = 0;  ///< of its first row in the sample
};

/// The token rows of a micro-batch: sequences of any length, one after the other from row 0 on.
struct Rows {
  int64_t count = 0;                    ///< of all sequences together
  std::span<const Sequence> sequences;  ///< on the host; CUDA kernels take DeviceRows
};

/// How a sum over rows is cut into fp32 chains: a grain is `tokens` positions of a sample, counted
/// from its position 0; where a sequence ends, so does its grain. No bit of a grain depends on the
/// other sequences of a micro-batch.
struct Grains {
  std::span<const Sequence> sequences;  ///< as those of Rows; empty: all rows are one grain
  int64_t tokens = 0;
};

}  // namespace trainyard::kernels

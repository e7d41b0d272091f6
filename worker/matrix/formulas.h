#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "worker/matrix/world.h"

namespace trainyard::matrix {

/// What one rank must have done and held, by closed formula from the model's sizes and the cell. Of
/// the engine's own numbers it takes which parameters travel together, and how many elements these
/// have; what all of them have is a formula again.
struct Expected {
  int64_t gemm_flops = 0;  ///< what is computed again left out
  int64_t attention_flops = 0;
  int64_t recomputed_gemm_flops = 0;
  int64_t recomputed_attention_flops = 0;
  int64_t unit_bytes = 0;  ///< of the weights of all units, as ops read them
  int64_t weights = 0;     ///< held for good: bytes, masters included
  int64_t moments = 0;
  int64_t sums = 0;
  /// The most that is held at one moment of what a rank holds of units for a while: sums of a
  /// micro-batch, and gathered weights.
  int64_t lent_sums = 0;
  int64_t lent_weights = 0;
  int64_t activations_kept = 0;  ///< beyond a pass: for B, or for a W that comes later
  int64_t bytes_sent = 0;
  /// By stage of the rank: micro-batches whose activations are held at once.
  std::vector<int64_t> in_flight;
};
Expected expected_of(const api::EngineSpec& spec, const Cell& cell, const RankFacts& rank,
                     int64_t steps);

/// Differences between what a rank did and what the formulas say, one line each.
std::vector<std::string> formula_faults(const api::EngineSpec& spec, const Cell& cell,
                                        const RankFacts& rank, int64_t steps);

}  // namespace trainyard::matrix

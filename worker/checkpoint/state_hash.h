#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "common/base/error.h"
#include "common/hash/hash.h"
#include "worker/checkpoint/reader.h"
#include "worker/checkpoint/types.h"

namespace trainyard::checkpoint {

/// The hash that says whether two training states are the same bits: XXH3-128 over every tensor in
/// ascending order of its global name (bytewise), for each name the master weights, m, v as
/// little-endian float32 in row-major order, then int64 optimizer step, uint64 seed, int64 samples
/// consumed, little-endian. Nothing of generation, ranks or layout. docs/concepts/state-hash.md.
class StateHash {
 public:
  /// Feeds a piece of one tensor; a tensor may come in several pieces, front to back. A (name,
  /// kind) below the one before is a bug (CHECK). Kind kState is not part of the hash and is
  /// refused.
  void add(std::string_view name, TensorKind kind, std::span<const float> values);
  /// Ends the stream. Called once.
  Hash128 finish(int64_t optimizer_step, uint64_t seed, int64_t samples_consumed);

 private:
  Xxh3Stream stream_;
  std::string name_;
  TensorKind kind_ = TensorKind::kParameter;
};

/// The state hash of a stored checkpoint. Errors: as CheckpointReader::read; kInvalidData when a
/// parameter or moment is not float32 or a scalar is missing.
Result<Hash128> state_hash_of(CheckpointReader& reader);

}  // namespace trainyard::checkpoint

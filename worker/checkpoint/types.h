#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/base/dtype.h"
#include "common/layout/layout.h"

namespace trainyard::checkpoint {

/// What a stored tensor is to training. The order is the order of hashing within one name.
enum class TensorKind : uint8_t {
  kParameter,     ///< "parameter": the master weights
  kFirstMoment,   ///< "m"
  kSecondMoment,  ///< "v"
  kState,         ///< "state": anything else that must survive (compression errors ...)
};

/// "parameter", "m", "v" or "state".
std::string_view name_of(TensorKind kind);

/// One rectangle of a global tensor, as one rank holds it: contiguous, row-major.
struct TensorSlice {
  std::string name;  ///< global parameter name: [A-Za-z0-9_.-], at most 256 bytes
  TensorKind kind = TensorKind::kParameter;
  DType dtype = DType::kFloat32;
  std::vector<int64_t> global_shape;  ///< every size > 0; empty for a scalar; at most 8 axes
  layout::Rectangle where;            ///< in it, every size > 0
  /// Not owned: must stay as it is until the write has finished.
  std::span<const std::byte> data;
};

/// A named value beside the tensors. Doubles must be finite.
using Scalar = std::variant<int64_t, uint64_t, double, std::string>;
using Scalars = std::map<std::string, Scalar>;

/// Names of the scalars that the state hash reads (docs/concepts/state-hash.md); both are required
/// for `trainyard ckpt show --hash`.
inline constexpr char kOptimizerStepScalar[] = "optimizerStep";  ///< int64: AdamW's t
inline constexpr char kSeedScalar[] = "seed";                    ///< uint64
/// Names of the scalars of a run with early stopping: the step whose model had the lowest
/// validation loss so far, and that loss. Retention keeps the checkpoint of that step.
inline constexpr char kBestStepScalar[] = "bestStep";            ///< int64
inline constexpr char kBestLossScalar[] = "bestValidationLoss";  ///< double

/// What one rank puts into a checkpoint. Over all ranks the slices of a tensor must be disjoint and
/// cover it; replicated tensors are written once.
/// All but `slices` and `owner` is taken from rank 0.
struct Snapshot {
  /// Of the manifest; 1 where programs of that version go on to the same bits.
  int64_t version = 2;
  int64_t step = 0;
  int64_t samples_consumed = 0;
  /// A JSON object: the engine configuration, with the resolved model under "model" (family,
  /// layers, hidden, heads, ffn, vocab, maxPositions): export reads that.
  std::string config_json = "{}";
  Scalars scalars;
  std::vector<TensorSlice> slices;
  /// Keeps what the slices point to; may be null where the memory outlives the writer and every
  /// call of its disk. Held until the last byte has been read.
  std::shared_ptr<const void> owner;
};

}  // namespace trainyard::checkpoint

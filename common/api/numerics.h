#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/api/engine_spec.h"

/// Where the cuts of a run's sums come from (docs/concepts/canonical-numerics.md): the manifest,
/// else the checkpoint that the run goes on from, else defaults. Pure.
namespace trainyard::api {

inline constexpr int64_t kDefaultKeyBlock = 128;
/// The default of numerics.grainTokens is a whole sequence, or so much of it.
inline constexpr int64_t kDefaultGrainTokens = 1024;
/// Its default before keyBlock and tensorChunks were fields.
inline constexpr int64_t kEarlierGrainTokens = 128;

/// `given`, with the values of `run` where it names none.
NumericsSpec with_values_of(NumericsSpec given, const NumericsSpec& run);

/// The numerics of `engine` with the defaults of new runs where it names no value. Its sizes are
/// known. What its device does not count by is 0: only that of device Auto is kept.
NumericsSpec with_defaults(const EngineSpec& engine);

/// The fields that cut sums of a run with these resolved numerics, as a manifest names them:
/// {"grainTokens", 1024}, {"keyBlock", 128}, {"tensorChunks", 0}. With Fast there are none.
std::vector<std::pair<std::string_view, int64_t>> values_of(const NumericsSpec& resolved);
/// The same in words, after the mode: "Canonical, grainTokens 1024, keyBlock 128, tensorChunks 0".
std::string describe(const NumericsSpec& resolved);

/// Whether programs that know no field which came with version 2 of checkpoints (tensorChunks and
/// keyBlock first of all) take this resolved configuration and compute the same bits from it.
bool is_of_version_1(const EngineSpec& engine);

/// The numerics of `engine`, which a checkpoint holds: one from before tensorChunks and keyBlock
/// were fields was trained with a chunk for each head and blocks of grainTokens keys. Of a run on a
/// GPU, it names none that processors count by, and tensorChunks only where sums are cut.
NumericsSpec as_trained(const EngineSpec& engine);
/// `run`, which as_trained() gave, for a run on `device`: cuts of sums do not move to GPUs, nor
/// from them.
NumericsSpec moved_to(NumericsSpec run, DeviceKind device);

/// A field of numerics that does not fit how the work is divided.
struct NumericsFault {
  std::string_view field;
  std::string found;
  std::string wanted;  ///< with the values that fit
};
std::vector<NumericsFault> numerics_faults(const EngineSpec& engine);

/// What data.sequenceLength would have to be where context ranks share sequences, or tensor ranks
/// have slices of them, and cannot have their parts of this one; empty: they can.
std::string sliced_length_wanted(const EngineSpec& engine);

}  // namespace trainyard::api

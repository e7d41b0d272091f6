#include "worker/checkpoint/state_hash.h"

#include <bit>
#include <tuple>

#include "common/base/check.h"

namespace trainyard::checkpoint {

static_assert(std::endian::native == std::endian::little,
              "values are hashed as they lie in memory");

void StateHash::add(std::string_view name, TensorKind kind, std::span<const float> values) {
  TRAINYARD_CHECK(kind != TensorKind::kState);
  TRAINYARD_CHECK(std::tuple(std::string_view(name_), kind_) <= std::tuple(name, kind));
  name_ = name;
  kind_ = kind;
  stream_.update(std::as_bytes(values));
}

Hash128 StateHash::finish(int64_t optimizer_step, uint64_t seed, int64_t samples_consumed) {
  stream_.update(std::as_bytes(std::span(&optimizer_step, 1)));
  stream_.update(std::as_bytes(std::span(&seed, 1)));
  stream_.update(std::as_bytes(std::span(&samples_consumed, 1)));
  return stream_.digest();
}

Result<Hash128> state_hash_of(CheckpointReader& reader) {
  const Manifest& manifest = reader.manifest();
  TRAINYARD_ASSIGN(const int64_t optimizer_step,
                   scalar_int64(manifest.scalars, kOptimizerStepScalar));
  TRAINYARD_ASSIGN(const uint64_t seed, scalar_uint64(manifest.scalars, kSeedScalar));
  StateHash hash;
  for (const TensorRecord& tensor : manifest.tensors) {  // ascending by name and kind
    if (tensor.kind == TensorKind::kState) continue;
    TRAINYARD_TRY(
        reader.read_pieces(tensor.name, tensor.kind, [&](std::span<const float> piece) -> Status {
          hash.add(tensor.name, tensor.kind, piece);
          return {};
        }));
  }
  return hash.finish(optimizer_step, seed, manifest.samples_consumed);
}

}  // namespace trainyard::checkpoint

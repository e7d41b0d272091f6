#include "common/layout/mesh.h"

#include <algorithm>
#include <string>

#include "common/base/check.h"

namespace trainyard::layout {
namespace {

/// The length of fsdp among `data` ranks.
int64_t shard_of(const api::ParallelismSpec& parallelism, int64_t data) {
  if (parallelism.mode == api::ParallelMode::kDataParallel) return data;
  if (parallelism.zero_stage == 0) return 1;
  if (parallelism.shard == 0) return data;
  int64_t shard = std::min(parallelism.shard, data);
  while (data % shard != 0)
    --shard;
  return shard;
}

}  // namespace

Coordinate coordinate_of(const Mesh& mesh, int rank) {
  TRAINYARD_CHECK(rank >= 0 && rank < mesh.size());
  Coordinate c;
  c.tp = rank % mesh.tp;
  rank /= mesh.tp;
  c.cp = rank % mesh.cp;
  rank /= mesh.cp;
  c.fsdp = rank % mesh.fsdp;
  rank /= mesh.fsdp;
  c.dp = rank % mesh.dp;
  c.pp = rank / mesh.dp;
  return c;
}

int rank_of(const Mesh& mesh, const Coordinate& c) {
  return (((c.pp * mesh.dp + c.dp) * mesh.fsdp + c.fsdp) * mesh.cp + c.cp) * mesh.tp + c.tp;
}

Result<Mesh> mesh_of(const api::ParallelismSpec& parallelism, int world) {
  const int64_t tp = parallelism.tensor;
  const int64_t pp = parallelism.pipeline;
  const int64_t cp = parallelism.context;
  const int64_t fixed = parallelism.model_ranks();
  if (world < 1 || fixed < 1 || world % fixed != 0) {
    return Error{ErrorCode::kInvalidConfig,
                 "engine.parallelism: found tensor " + std::to_string(tp) + " x pipeline " +
                     std::to_string(pp) + " x context " + std::to_string(cp) + " = " +
                     std::to_string(fixed) + ", wanted a divisor of the " + std::to_string(world) +
                     " ranks"};
  }
  const int64_t data = world / fixed;
  const int64_t shard = shard_of(parallelism, data);
  return Mesh{.pp = static_cast<int>(pp),
              .dp = static_cast<int>(data / shard),
              .fsdp = static_cast<int>(shard),
              .cp = static_cast<int>(cp),
              .tp = static_cast<int>(tp),
              .slices = parallelism.sequence_parallel && tp > 1,
              .ring = parallelism.in_ring()};
}

std::string describe(const api::ParallelismSpec& parallelism, const Mesh& mesh) {
  const bool one_holds_all = parallelism.mode == api::ParallelMode::kDataParallel;
  const bool as_asked = parallelism.shard == 0 || parallelism.shard == mesh.fsdp;
  const std::string shard = one_holds_all ? "dp" : "shard";
  std::string text;
  const auto add = [&](const std::string& axis, int size, const std::string& note = "") {
    if (size == 1 && note.empty()) return;
    text += (text.empty() ? "" : " x ") + axis + " " + std::to_string(size) + note;
  };
  add("pp", mesh.pp);
  add("dp", mesh.dp);
  add(shard, mesh.fsdp, as_asked ? "" : " (" + std::to_string(parallelism.shard) + " asked for)");
  add("cp", mesh.cp, mesh.ring ? " (ring)" : "");
  add("tp", mesh.tp, mesh.slices ? " (sequence parallel)" : "");
  if (text.empty()) return "1 rank";
  return text +
         (one_holds_all ? ", DataParallel" : ", ZeRO-" + std::to_string(parallelism.zero_stage));
}

Range even_share(int64_t total, int64_t parts, int64_t index) {
  TRAINYARD_CHECK(parts > 0 && index >= 0 && index < parts && total >= 0);
  // 128-bit products: total x parts may exceed 63 bits for element counts of large models.
  const auto cut = [&](int64_t i) {
    return static_cast<int64_t>(static_cast<__int128>(total) * i / parts);
  };
  return {cut(index), cut(index + 1)};
}

}  // namespace trainyard::layout

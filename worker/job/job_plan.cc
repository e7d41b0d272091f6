#include "worker/job/job_plan.h"

#include <algorithm>
#include <optional>
#include <sys/resource.h>
#include <unistd.h>

#include "common/io/byte_limits.h"
#include "common/io/control_group.h"
#include "common/io/memory_facts.h"
#include "common/text/quantity.h"
#include "worker/engine/engine.h"
#include "worker/engine/limits.h"

namespace trainyard::engine {
namespace {

/// Beyond any machine, and far enough below 2^63 for every sum and product of a plan: 8 PiB.
constexpr double kCountedBytes = 9007199254740992.0;

double number(int64_t value) { return static_cast<double>(value); }

/// Refuses sizes whose plan would not fit into integers, in floating point: by a lower bound of a
/// rank's bytes.
Status check_countable(const api::EngineSpec& spec, int64_t ranks) {
  const api::ModelSpec& model = spec.model;
  const double hidden = number(model.hidden);
  const double parameters = (number(model.vocab) + number(model.max_positions)) * hidden +
                            number(model.layers) * hidden * (4 * hidden + 2 * number(model.ffn));
  const int64_t sequences = std::min(spec.batch.micro_sequences,
                                     spec.batch.global_sequences / std::max<int64_t>(1, ranks));
  const double values = number(sequences) * number(spec.data.sequence_length) *
                        (number(model.layers) * (hidden + number(model.ffn)) + number(model.vocab));
  if (12 * parameters + 2 * values <= kCountedBytes) return {};
  return Error{ErrorCode::kInvalidConfig,
               "engine.model: found one of more than 8.0 PiB a rank, wanted less than any machine "
               "has; use a smaller model or smaller micro-batches"};
}

std::string ways_out(const api::EngineSpec& spec, size_t ranks) {
  std::string text = "; ";
  const int64_t stage = spec.parallelism.zero_stage;
  const bool cuts =
      spec.parallelism.mode == api::ParallelMode::kDistributed && spec.parallelism.shard != 1;
  if (stage < 3 && ranks > 1 && cuts) {
    text += "raise engine.parallelism.zeroStage (" + std::to_string(stage) + ") or ";
  }
  text += "use more ranks on more machines, or ";
  const int64_t micro = spec.batch.micro_sequences;
  text += micro > 1 ? "lower engine.batch.microSequences (" + std::to_string(micro) + ")"
                    : std::string("use a smaller model");
  return text;
}

}  // namespace

Result<Plan> plan_job(const api::EngineSpec& spec, const JobPlace& place) {
  TRAINYARD_TRY(check_countable(spec, place.ranks));
  TRAINYARD_TRY(check_kernel_limits(spec));
  TRAINYARD_ASSIGN(const layout::Mesh mesh,
                   layout::mesh_of(spec.parallelism, static_cast<int>(place.ranks)));
  const bool tcp = spec.runtime.transport == api::Transport::kTcp;
  return Plan::make({.spec = spec,
                     .mesh = mesh,
                     .unit_bytes = EngineSetup{}.unit_bytes,
                     .threads = place.threads,
                     .writes_checkpoints = place.writes_checkpoints,
                     .shares_memory = place.one_host && !tcp});
}

MemoryRoom memory_room() {
  MemoryRoom room;
  room.machine_bytes = static_cast<int64_t>(::sysconf(_SC_PHYS_PAGES)) *
                       static_cast<int64_t>(::sysconf(_SC_PAGESIZE));
  // A container's is less: beyond it ranks are killed without a word.
  const std::optional<int64_t> group = group_limits().memory_bytes;
  room.limited = group && *group < room.machine_bytes;
  room.bytes = room.limited ? *group : available_memory().value_or(room.machine_bytes);
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    room.process_bytes = static_cast<int64_t>(
        std::min(limit.rlim_cur, static_cast<rlim_t>(std::numeric_limits<int64_t>::max())));
  }
  return room;
}

Result<std::string> check_memory(const Plan& plan, layout::Range ranks, const api::EngineSpec& spec,
                                 const MemoryRoom& room) {
  int64_t all = 0;
  int64_t most = 0;
  for (int64_t rank = ranks.begin; rank < ranks.end; ++rank) {
    const int64_t bytes = plan.ranks()[static_cast<size_t>(rank)].total();
    all += bytes;
    most = std::max(most, bytes);
  }
  const bool process = most > room.process_bytes;
  if (!process && all <= room.bytes) return std::string();
  std::string limit = "at most the " + text::size_text(room.bytes);
  if (process) {
    limit = "at most " + text::size_text(room.process_bytes) + " a process (ulimit -v)";
  } else {
    limit += room.limited ? " that a control group leaves this machine's ranks"
                          : " of memory that this machine has available";
  }
  const std::string fault = "engine.model: found one that needs " + text::size_text(all) +
                            " on the " + std::to_string(ranks.size()) + " ranks here, up to " +
                            text::size_text(most) + " a rank, wanted " + limit +
                            ways_out(spec, plan.ranks().size());
  if (spec.runtime.memory_check == api::MemoryCheck::kWarn) return fault;
  const bool never = process || room.limited || all > room.machine_bytes;
  return Error{never ? ErrorCode::kInvalidConfig : ErrorCode::kUnavailable,
               fault + "; engine.runtime.memoryCheck: Warn starts it all the same"};
}

Status check_file_size(const Plan& plan) {
  int64_t most = 0;
  for (const RankPlan& rank : plan.ranks())
    most = std::max(most, rank.of(PlanPurpose::kSnapshot));
  return check_limit(kFileSizeLimit, number(most), " for a rank's part of a checkpoint");
}

}  // namespace trainyard::engine

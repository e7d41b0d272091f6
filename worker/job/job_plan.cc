#include "worker/job/job_plan.h"

#include <algorithm>
#include <optional>
#include <span>
#include <sys/resource.h>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>

#include "common/api/job_size.h"
#include "common/io/byte_limits.h"
#include "common/io/control_group.h"
#include "common/io/memory_facts.h"
#include "common/text/quantity.h"
#include "worker/device/cuda_plan.h"
#include "worker/device/device_choice.h"
#include "worker/engine/engine.h"
#include "worker/engine/limits.h"
#include "worker/job/ways_out.h"
#include "worker/state/units.h"

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
               "engine.model: found one of more than 8.0 PiB per rank, wanted less than any "
               "machine has; use a smaller model or smaller micro-batches"};
}

/// check_memory() of `ranks`, with the ways out of all `groups`.
Result<std::string> check_group(const MemoryPlan& plan, layout::Range ranks,
                                std::span<const layout::Range> groups, const api::EngineSpec& spec,
                                const MemoryRoom& room) {
  const MemoryNeed need = need_of(plan, ranks);
  if (need.fits(room)) return std::string();
  const bool process = need.most > room.process_bytes;
  std::string limit = "at most the " + text::size_text(room.bytes);
  if (process) {
    limit = "at most " + text::size_text(room.process_bytes) + " per process (ulimit -v)";
  } else {
    limit += room.whose;
  }
  const std::string fault = "engine.model: found one that needs " + text::size_text(need.all) +
                            " on the " + text::counted(ranks.size(), "rank") + " here, up to " +
                            text::size_text(need.most) + " per rank, wanted " + limit +
                            ways_out(plan, groups, room);
  if (spec.runtime.memory_check == api::MemoryCheck::kWarn) return fault;
  const bool never = process || need.all > room.limit_bytes;
  return Error{never ? ErrorCode::kInvalidConfig : ErrorCode::kUnavailable,
               fault + "; engine.runtime.memoryCheck: Warn starts it anyway"};
}

/// The ranks of each pod.
std::vector<layout::Range> pods_of(const MemoryPlan& plan, const api::TrainingJobSpec& job) {
  const auto ranks = std::ssize(plan.ranks());
  const int64_t per_pod = api::ranks_per_node(job);
  std::vector<layout::Range> pods;
  for (int64_t begin = 0; begin < ranks; begin += per_pod)
    pods.push_back({begin, std::min(begin + per_pod, ranks)});
  return pods;
}

}  // namespace

bool keeps_states(const api::TrainingJobSpec& job) {
  return job.engine && job.agent != api::AgentMode::kNone &&
         job.failure_policy.restart_strategy == api::RestartStrategy::kInPlace &&
         job.checkpoint_policy.memory_every_steps != 0;
}

int64_t ranks_with_copies(const api::TrainingJobSpec& job) {
  const bool copies = keeps_states(job) && job.checkpoint_policy.memory_replicas > 0;
  return copies && job.num_nodes > 1 ? api::ranks_of(job) / job.num_nodes : 0;
}

Result<MemoryPlan> plan_job(const api::EngineSpec& spec, const JobPlace& place) {
  TRAINYARD_TRY(check_countable(spec, place.ranks));
  TRAINYARD_TRY(check_kernel_limits(spec, limits_of(spec.device)));
  TRAINYARD_ASSIGN(const layout::Mesh mesh,
                   layout::mesh_of(spec.parallelism, static_cast<int>(place.ranks)));
  const bool tcp = spec.runtime.transport == api::Transport::kTcp;
  return MemoryPlan::make(
      {.spec = spec,
       .mesh = mesh,
       .formats = formats_of(spec.device, compute_type(spec.precision), sum_type(spec.numerics)),
       .unit_bytes = EngineSetup{}.unit_bytes,
       .kernel_scratch_bytes = place.kernel_scratch_bytes,
       .writes_checkpoints = place.writes_checkpoints,
       .keeps_states = place.keeps_states,
       .ranks_with_copies = static_cast<int>(place.ranks_with_copies),
       .shares_memory = place.one_host && !tcp,
       .trace_ring_bytes = place.trace_ring_bytes});
}

MemoryRoom memory_room(int64_t started) {
  MemoryRoom room;
  room.limit_bytes = static_cast<int64_t>(::sysconf(_SC_PHYS_PAGES)) *
                     static_cast<int64_t>(::sysconf(_SC_PAGESIZE));
  room.bytes = available_memory().value_or(room.limit_bytes);
  // Beyond what a control group allows ranks are killed without a word.
  const GroupLimits group = group_limits();
  room.limit_bytes = std::min(room.limit_bytes, group.memory_bytes.value_or(room.limit_bytes));
  if (group.memory_room_bytes.value_or(room.bytes) < room.bytes) {
    room.bytes = *group.memory_room_bytes;
    room.whose = " that a control group leaves the ranks here";
  }
  const int64_t own = std::min(peak_own_memory().value_or(0), kProcessBytes);
  room.bytes = std::min(room.limit_bytes, room.bytes + started * own);
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    room.process_bytes = static_cast<int64_t>(
        std::min(limit.rlim_cur, static_cast<rlim_t>(std::numeric_limits<int64_t>::max())));
  }
  return room;
}

Result<std::string> check_memory(const MemoryPlan& plan, layout::Range ranks,
                                 const api::EngineSpec& spec, const MemoryRoom& room) {
  return check_group(plan, ranks, std::span(&ranks, 1), spec, room);
}

Result<std::string> check_gpu_memory(const MemoryPlan& plan, const api::EngineSpec& spec,
                                     int64_t memory_bytes) {
  const int rank = plan.largest_rank();
  const RankMemory& most = plan.ranks()[static_cast<size_t>(rank)];
  const int64_t outside = plan.driver_bytes(rank);
  const int64_t needed = plan.whole_gpu_bytes(rank);
  if (needed <= memory_bytes) return std::string();
  std::string table;
  for (size_t purpose = 0; purpose < kMemoryPurposes; ++purpose) {
    const auto of = static_cast<MemoryPurpose>(purpose);
    if (!is_on_device(of) || most.of(of) == 0) continue;
    table += std::string(name_of(of)) + " " + text::size_text(most.of(of)) + ", ";
  }
  const std::string fault =
      "engine.model: found one that needs " + text::size_text(needed) + " on a GPU (" + table +
      "driver " + (plan.nccl_bytes(rank) > 0 ? "and NCCL " : "") + text::size_text(outside) +
      "), wanted at most the " + text::size_text(memory_bytes) +
      " that it has; use a smaller engine.batch.microSequences, or engine.parallelism.recompute: "
      "Selective or Full";
  if (spec.runtime.memory_check == api::MemoryCheck::kWarn) return fault;
  return Error{ErrorCode::kInvalidConfig,
               fault + "; engine.runtime.memoryCheck: Warn starts it anyway"};
}

Result<std::string> check_pod_memory(const MemoryPlan& plan, const api::TrainingJobSpec& job,
                                     const api::EngineSpec& complete) {
  const std::optional<int64_t> limit = api::trainer_memory_limit(job);
  if (!limit) return std::string();
  const std::vector<layout::Range> pods = pods_of(plan, job);
  const auto most = std::max_element(pods.begin(), pods.end(),
                                     [&](const layout::Range& a, const layout::Range& b) {
                                       return need_of(plan, a).all < need_of(plan, b).all;
                                     });
  return check_group(plan, *most, pods, complete,
                     {.limit_bytes = *limit,
                      .bytes = *limit,
                      .whose = " that resources.limits.memory of container trainer allows a pod"});
}

bool fits_pods(const MemoryPlan& plan, const api::TrainingJobSpec& job) {
  const std::optional<int64_t> limit = api::trainer_memory_limit(job);
  const std::vector<layout::Range> pods = pods_of(plan, job);
  return std::all_of(pods.begin(), pods.end(), [&](const layout::Range& pod) {
    return !limit || need_of(plan, pod).all <= *limit;
  });
}

std::string sharding_doubt(const MemoryPlan& plan, const MemoryPlan& at_stage_1,
                           const MemoryRoom& room) {
  const layout::Mesh& mesh = plan.setup().mesh;
  const int64_t stage = plan.setup().spec.parallelism.zero_stage;
  if (mesh.pp == 1 || mesh.fsdp == 1 || stage < 2) return "";
  if (plan.setup().spec.device == api::DeviceKind::kCuda)
    return "";  // how large GPUs are is not known
  if (!need_of(at_stage_1, {0, mesh.size()}).fits(room)) return "";
  const auto sent = [](const MemoryPlan& of) {
    return number(of.step_of(of.largest_rank()).bytes_sent) / 1e6;
  };
  return fmt::format(
      "engine.parallelism.zeroStage: found {}, which communicates for each of {} micro-batches: "
      "the "
      "largest rank sends {:.1f} MB per step; zeroStage: 1 sends {:.1f} MB and holds {} instead of "
      "{}",
      stage, plan.rounds(), sent(plan), sent(at_stage_1),
      text::size_text(at_stage_1.largest().total()), text::size_text(plan.largest().total()));
}

Status check_file_size(const MemoryPlan& plan) {
  int64_t most = 0;
  for (const RankMemory& rank : plan.ranks())
    most = std::max(most, rank.of(MemoryPurpose::kSnapshot));
  return check_limit(kFileSizeLimit, number(most), " for a rank's part of a checkpoint");
}

}  // namespace trainyard::engine

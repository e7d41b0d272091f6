#include "worker/job/job_plan.h"

#include <algorithm>
#include <optional>
#include <sys/resource.h>
#include <unistd.h>

#include <fmt/format.h>

#include "common/api/enum_names.h"
#include "common/api/job_size.h"
#include "common/io/byte_limits.h"
#include "common/io/control_group.h"
#include "common/io/memory_facts.h"
#include "common/text/quantity.h"
#include "worker/device/cuda_plan.h"
#include "worker/device/device_choice.h"
#include "worker/engine/engine.h"
#include "worker/engine/limits.h"
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

/// What some ranks of a plan hold: together, and the largest of them.
struct Need {
  int64_t all = 0;
  int64_t most = 0;
  bool fits(const MemoryRoom& room) const {
    return most <= room.process_bytes && all <= room.bytes;
  }
};

Need need_of(const MemoryPlan& plan, layout::Range ranks) {
  Need need;
  for (int64_t rank = ranks.begin; rank < ranks.end; ++rank) {
    const int64_t bytes = plan.host_bytes(rank);
    need.all += bytes;
    need.most = std::max(need.most, bytes);
  }
  return need;
}

/// Looks for changes of a job with which some of its ranks would fit into the room.
class WaysOut {
 public:
  WaysOut(const MemoryPlan& plan, layout::Range ranks, const MemoryRoom& room)
      : setup_(plan.setup()), ranks_(ranks), room_(room) {}

  /// For people; begins with "; ".
  std::string operator()() const {
    // Each way is planned as the job was: no longer worth the time for very many ranks.
    if (setup_.mesh.size() > kRanksTried) return "; use more ranks on more machines";
    if (const std::string text = by_no_trace(); !text.empty()) return "; " + text;
    // The cheapest first: of these recomputation alone costs time of every step.
    for (const auto way : {&WaysOut::by_schedule, &WaysOut::by_own_memory, &WaysOut::by_disk,
                           &WaysOut::by_layout, &WaysOut::by_micro_batch, &WaysOut::by_recompute}) {
      if (std::string text = (this->*way)(); !text.empty()) return "; set " + text;
    }
    const bool one = setup_.mesh.data_ranks() == 1;
    return std::string("; no ") + (one ? "" : "zeroStage, ") +
           "microSequences or recompute of this model fits: use a smaller model, or more ranks on "
           "more machines";
  }

 private:
  static constexpr int kRanksTried = 1024;

  std::optional<Need> need_of_job(const api::EngineSpec& spec) const {
    MemoryPlanSetup setup = setup_;
    setup.spec = spec;
    const auto mesh = layout::mesh_of(spec.parallelism, setup_.mesh.size());
    if (!mesh) return std::nullopt;
    setup.mesh = *mesh;
    return need_of_setup(setup);
  }

  std::optional<Need> need_of_setup(const MemoryPlanSetup& setup) const {
    const auto plan = MemoryPlan::make(setup);
    if (!plan) return std::nullopt;
    const Need need = need_of(*plan, ranks_);
    return need.fits(room_) ? std::optional(need) : std::nullopt;
  }

  static std::string amount(const Need& need) {
    return ", which needs " + text::size_text(need.all);
  }

  std::string by_no_trace() const {
    if (setup_.trace_ring_bytes == 0) return "";
    MemoryPlanSetup setup = setup_;
    setup.trace_ring_bytes = 0;
    const std::optional<Need> need = need_of_setup(setup);
    return need ? "run without --trace" + amount(*need) : "";
  }

  /// 1F1B has fewer micro-batches in flight than GPipe and takes as long.
  std::string by_schedule() const {
    api::EngineSpec spec = setup_.spec;
    if (spec.parallelism.pipeline_schedule != api::PipelineSchedule::kGPipe) return "";
    spec.parallelism.pipeline_schedule = api::PipelineSchedule::kOneFOneB;
    const std::optional<Need> need = need_of_job(spec);
    if (!need) return "";
    return "engine.parallelism.pipelineSchedule: OneFOneB (found GPipe)" + amount(*need);
  }

  /// No copies with the next node: a lost pod costs more steps.
  std::string by_own_memory() const {
    if (!setup_.keeps_states || setup_.ranks_with_copies == 0) return "";
    MemoryPlanSetup setup = setup_;
    setup.ranks_with_copies = 0;
    const std::optional<Need> need = need_of_setup(setup);
    return need ? "checkpointPolicy.memoryReplicas: 0" + amount(*need) : "";
  }

  /// No states in memory: only restarts take longer.
  std::string by_disk() const {
    if (!setup_.keeps_states) return "";
    MemoryPlanSetup setup = setup_;
    setup.keeps_states = false;
    const std::optional<Need> need = need_of_setup(setup);
    return need ? "checkpointPolicy.memoryEverySteps: 0" + amount(*need) : "";
  }

  /// The lowest ZeRO stage that fits, with the shard that there is or, where that is not enough,
  /// with one of all ranks.
  std::string by_layout() const {
    const api::ParallelismSpec& given = setup_.spec.parallelism;
    if (setup_.mesh.data_ranks() == 1) return "";
    const bool distributed = given.mode == api::ParallelMode::kDistributed;
    for (const int64_t shard : {given.shard, int64_t{0}}) {
      for (int64_t stage = std::max<int64_t>(1, given.zero_stage); stage <= 3; ++stage) {
        api::EngineSpec spec = setup_.spec;
        spec.parallelism.mode = api::ParallelMode::kDistributed;
        spec.parallelism.zero_stage = stage;
        spec.parallelism.shard = shard;
        if (spec.parallelism == given) continue;
        const std::optional<Need> need = need_of_job(spec);
        if (!need) continue;
        std::string text = "engine.parallelism.";
        if (!distributed) text += "mode: Distributed with ";
        const bool other_shard = shard != given.shard;
        if (other_shard) text += "shard: 0 (found " + std::to_string(given.shard) + ")";
        if (other_shard && stage != given.zero_stage) text += " and ";
        if (stage != given.zero_stage || !distributed) {
          text += "zeroStage: " + std::to_string(stage) + " (found " +
                  std::to_string(given.zero_stage) + ")";
        }
        return text + amount(*need);
      }
    }
    return "";
  }

  /// Where the activations are what is too much: the largest half, quarter ... that fits.
  std::string by_micro_batch() const { return by_micro_batch_of(setup_.spec); }

  std::string by_micro_batch_of(api::EngineSpec spec) const {
    const int64_t given = spec.batch.micro_sequences;
    for (int64_t micro = given / 2; micro >= 1; micro /= 2) {
      spec.batch.micro_sequences = micro;
      const std::optional<Need> need = need_of_job(spec);
      if (!need) continue;
      return "engine.batch.microSequences: " + std::to_string(micro) + " (found " +
             std::to_string(given) + ")" + amount(*need);
    }
    return "";
  }

  /// The mode that computes least again, or Full with smaller micro-batches.
  std::string by_recompute() const {
    const api::Recompute given = setup_.spec.parallelism.recompute;
    const auto set = [&](api::Recompute mode) {
      return "engine.parallelism.recompute: " + std::string(api::name_of(mode)) + " (found " +
             std::string(api::name_of(given)) + ")";
    };
    api::EngineSpec spec = setup_.spec;
    for (const api::Recompute mode : {api::Recompute::kSelective, api::Recompute::kFull}) {
      if (mode <= given) continue;
      spec.parallelism.recompute = mode;
      if (const std::optional<Need> need = need_of_job(spec)) return set(mode) + amount(*need);
    }
    if (given == api::Recompute::kFull) return "";
    const std::string smaller = by_micro_batch_of(spec);
    return smaller.empty() ? "" : set(api::Recompute::kFull) + " and " + smaller;
  }

  const MemoryPlanSetup& setup_;
  const layout::Range ranks_;
  const MemoryRoom& room_;
};

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
  const Need need = need_of(plan, ranks);
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
                            WaysOut(plan, ranks, room)();
  if (spec.runtime.memory_check == api::MemoryCheck::kWarn) return fault;
  const bool never = process || need.all > room.limit_bytes;
  return Error{never ? ErrorCode::kInvalidConfig : ErrorCode::kUnavailable,
               fault + "; engine.runtime.memoryCheck: Warn starts it anyway"};
}

Result<std::string> check_gpu_memory(const MemoryPlan& plan, const api::EngineSpec& spec,
                                     int64_t memory_bytes) {
  int rank = 0;
  for (int other = 1; other < static_cast<int>(plan.ranks().size()); ++other) {
    const auto all_of = [&](int r) { return plan.gpu_bytes(r) + plan.nccl_bytes(r); };
    if (all_of(other) > all_of(rank)) rank = other;
  }
  const RankMemory& most = plan.ranks()[static_cast<size_t>(rank)];
  const int64_t outside = kGpuContextBytes + plan.nccl_bytes(rank);
  const int64_t needed = plan.gpu_bytes(rank) + outside;
  if (needed <= memory_bytes) return std::string();
  std::string table;
  for (size_t purpose = 0; purpose < kMemoryPurposes; ++purpose) {
    const auto of = static_cast<MemoryPurpose>(purpose);
    if (of > MemoryPurpose::kKernelScratch || most.of(of) == 0) continue;
    table += std::string(name_of(of)) + " " + text::size_text(most.of(of)) + ", ";
  }
  const std::string fault =
      "engine.model: found one that needs " + text::size_text(needed) + " on a GPU (" + table +
      "driver " + (outside > kGpuContextBytes ? "and NCCL " : "") + text::size_text(outside) +
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
  const auto ranks = std::ssize(plan.ranks());
  const int64_t per_pod = api::ranks_per_node(job);
  if (!limit) return std::string();
  layout::Range most;
  int64_t most_bytes = -1;
  for (int64_t begin = 0; begin < ranks; begin += per_pod) {
    const layout::Range pod{begin, std::min(begin + per_pod, ranks)};
    const int64_t bytes = need_of(plan, pod).all;
    if (bytes > most_bytes) most = pod;
    most_bytes = std::max(most_bytes, bytes);
  }
  return check_memory(plan, most, complete,
                      {.limit_bytes = *limit,
                       .bytes = *limit,
                       .whose = " that resources.limits.memory of container trainer allows a pod"});
}

std::string sharding_doubt(const MemoryPlan& plan, const MemoryPlan& at_stage_1,
                           const MemoryRoom& room) {
  const layout::Mesh& mesh = plan.setup().mesh;
  const int64_t stage = plan.setup().spec.parallelism.zero_stage;
  if (mesh.pp == 1 || mesh.fsdp == 1 || stage < 2) return "";
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

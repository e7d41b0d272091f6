#include "worker/job/step_timeline.h"

namespace trainyard::engine {
namespace {

/// Of one layer; the loss goes forward in the backward pass and counts as what it is.
double cost_of(const MemoryPlan& plan, PassCosts costs, InstructionKind kind, int layer,
               int64_t samples) {
  const OpFlops& flops = plan.flops_per_sample(layer);
  if (kind == InstructionKind::kRecompute && flops.recompute == 0) return 0;
  if (costs == PassCosts::kUnits) {
    const layout::StageMap& stages = plan.stages();
    return 1.0 / static_cast<double>(stages.layers(stages.stage_of(layer)).size());
  }
  const auto whole = [samples](int64_t of_one) { return static_cast<double>(samples * of_one); };
  switch (kind) {
    case InstructionKind::kForward:
      return whole(flops.forward);
    case InstructionKind::kRecompute:
      return whole(flops.recompute);
    case InstructionKind::kBackwardInput:
      return whole(flops.backward_input);
    case InstructionKind::kBackwardWeight:
      return whole(flops.backward_weight);
    default:
      return 0;
  }
}

}  // namespace

std::vector<int> pipeline_ranks(const MemoryPlan& plan) {
  const layout::Mesh& mesh = plan.setup().mesh;
  int data_rank = 0;
  while (std::ssize(plan.micro_batches_of(data_rank * mesh.cp * mesh.tp)) < plan.rounds())
    ++data_rank;
  std::vector<int> ranks;
  for (int pp = 0; pp < mesh.pp; ++pp)
    ranks.push_back(layout::rank_of(
        mesh, {.pp = pp, .dp = data_rank / mesh.fsdp, .fsdp = data_rank % mesh.fsdp}));
  return ranks;
}

Status simulate_step(const MemoryPlan& plan, PassCosts costs, const RunObserver& ran) {
  std::vector<RankProgram> programs;
  for (const int rank : pipeline_ranks(plan)) {
    const Lowering lowering = plan.lowering_of(rank);
    programs.push_back({.program = plan.program_of(rank),
                        .micro_batches = lowering.micro_batches,
                        .at = lowering.at,
                        .rank = rank});
  }
  const std::vector<int64_t> samples = plan.micro_batches_of(programs.front().rank);
  const Costs taken{.seconds = [&](const RankProgram&, const Instruction& i) {
    if (!is_pass(i.kind)) return 0.0;
    return cost_of(plan, costs, i.kind, i.layer, samples[static_cast<size_t>(i.micro_batch)]);
  }};
  TRAINYARD_TRY(simulate(programs, plan.lowering_of(programs.front().rank), taken, ran));
  return {};
}

PassTimes mean_times(const MemoryPlan& plan, PassCosts costs) {
  const layout::StageMap& stages = plan.stages();
  const int64_t samples = plan.micro_batches_of(pipeline_ranks(plan).front()).front();
  PassTimes mean{0, 0, 0};
  for (int layer = 0; layer < stages.layers(); ++layer) {
    const auto cost = [&](InstructionKind kind) {
      return cost_of(plan, costs, kind, layer, samples) / stages.ranks();
    };
    mean.forward += cost(InstructionKind::kForward);
    mean.backward_input +=
        cost(InstructionKind::kRecompute) + cost(InstructionKind::kBackwardInput);
    mean.backward_weight += cost(InstructionKind::kBackwardWeight);
  }
  return mean;
}

}  // namespace trainyard::engine

#include "worker/job/plan.h"

#include <algorithm>
#include <numeric>

#include "kernels/cpu/cpu_limits.h"
#include "worker/comm/formulas.h"
#include "worker/comm/host/memory_segment.h"
#include "worker/comm/host/ring_order.h"
#include "worker/data/batch_loader.h"
#include "worker/engine/limits.h"
#include "worker/engine/optimizer.h"
#include "worker/job/owned_parts.h"
#include "worker/model/family.h"
#include "worker/program/lower.h"
#include "worker/state/units.h"

namespace trainyard::engine {
namespace {

/// Bytes of an element in a checkpoint: fp32 master and two moments.
constexpr int64_t kCheckpointBytes = 3 * static_cast<int64_t>(sizeof(float));

/// A member's part of what a group shares.
int64_t segment_bytes(int members) {
  return members > 1 ? comm::MemorySegment::total_bytes(members) / members : 0;
}

}  // namespace

std::string_view name_of(PlanPurpose purpose) {
  constexpr std::array<std::string_view, kPlanPurposes> kNames = {
      "weights",     "master weights", "moments",       "gradient sums",       "unit buffers",
      "activations", "kernel scratch", "token batches", "checkpoint snapshot", "shared memory",
      "process"};
  return kNames[static_cast<size_t>(purpose)];
}

int64_t RankPlan::total() const { return std::accumulate(bytes.begin(), bytes.end(), int64_t{0}); }

int64_t RankPlan::engine() const {
  return of(PlanPurpose::kWeights) + of(PlanPurpose::kMasters) + of(PlanPurpose::kMoments) +
         of(PlanPurpose::kGradientSums) + of(PlanPurpose::kUnitBuffers) +
         of(PlanPurpose::kActivations) + of(PlanPurpose::kKernelScratch);
}

Result<Plan> Plan::make(const PlanSetup& setup) {
  TRAINYARD_TRY(check_batch(setup.spec.batch, setup.mesh.data_ranks()));
  Plan plan(setup);
  plan.partition_ = partition_of(setup.spec.batch, setup.mesh.data_ranks());
  TRAINYARD_ASSIGN(const Model model, build_model(setup.spec.model));
  plan.parameters_ = model.parameter_count();
  const int64_t tokens = setup.spec.data.sequence_length;
  const OpFlops flops = total_flops(
      model,
      {.rows = tokens, .tokens_per_sample = tokens, .compute = compute_type(setup.spec.precision)});
  plan.flops_per_sample_ = flops.forward + flops.backward_input + flops.backward_weight;

  const int stage_end[] = {static_cast<int>(model.layers.size())};
  const api::ParallelismSpec& parallelism = setup.spec.parallelism;
  TRAINYARD_ASSIGN(plan.layout_, make_layout(model,
                                             make_units(model, compute_type(setup.spec.precision),
                                                        setup.unit_bytes, stage_end),
                                             parallelism, setup.mesh));
  const std::vector<int> named(parallelism.ring_order.begin(), parallelism.ring_order.end());
  TRAINYARD_ASSIGN(plan.ring_, comm::complete_ring_order(named, setup.mesh.size()));

  for (int rank = 0; rank < setup.mesh.size(); ++rank) {
    const int64_t samples = plan.samples_of(rank);
    if (!plan.shares_.contains(samples)) plan.shares_[samples] = plan.make_share(model, rank);
  }
  plan.plan_states(static_cast<int>(model.params.size()));
  for (int rank = 0; rank < setup.mesh.size(); ++rank)
    plan.plan_rank(rank);
  return plan;
}

int64_t Plan::data_rank(int rank) const {
  return layout::data_rank(setup_.mesh, layout::coordinate_of(setup_.mesh, rank));
}

int64_t Plan::samples_of(int rank) const { return partition_.share(data_rank(rank)).size(); }

Plan::Share Plan::make_share(const Model& model, int rank) const {
  const layout::Coordinate at = layout::coordinate_of(setup_.mesh, rank);
  const StepShape shape = step_shape(setup_.spec, partition_, data_rank(rank));
  Lowering lowering = whole_model(model, layout_, at);
  lowering.micro_batches = shape.micro_batches;
  StepProgram program = lower(one_stage_schedule(shape.rounds), lowering);
  const StepPlan plan = make_step_plan(program, model, layout_, at, shape);
  return {.buffer_bytes = plan.buffer_bytes(),
          .arena_bytes = plan.arena_bytes(),
          .program = std::move(program)};
}

/// Weights, optimizer states, sums and snapshots of all ranks.
void Plan::plan_states(int params) {
  constexpr auto kFloatBytes = static_cast<int64_t>(sizeof(float));
  constexpr auto kSumBytes = static_cast<int64_t>(sizeof(int64_t));
  const layout::Mesh& mesh = setup_.mesh;
  const layout::Sharding& sharding = layout_.sharding();
  const auto type = [this](int unit) { return layout_.unit(unit).dtype; };
  const std::vector<int64_t> owned = owned_bytes(layout_, mesh.fsdp, [](int) { return 1; });
  const std::vector<int64_t> owned_weights =
      owned_bytes(layout_, mesh.fsdp, [&](int unit) { return size_of(type(unit)); });
  const std::vector<int64_t> masters = owned_bytes(layout_, mesh.fsdp, [&](int unit) {
    return type(unit) == DType::kFloat32 ? 0 : kFloatBytes;
  });
  int64_t all = 0;
  int64_t all_weights = 0;
  for (int unit = 0; unit < layout_.units(); ++unit) {
    all += layout_.elements(unit);
    all_weights += layout_.elements(unit) * size_of(type(unit));
  }
  std::vector<int64_t> stored(static_cast<size_t>(mesh.data_ranks()));
  if (setup_.writes_checkpoints) stored = stored_elements(layout_, mesh, params);
  for (int rank = 0; rank < mesh.size(); ++rank) {
    const auto part = static_cast<size_t>(layout::coordinate_of(mesh, rank).fsdp);
    RankPlan& plan = ranks_.emplace_back();
    plan.of(PlanPurpose::kWeights) = sharding.weights ? owned_weights[part] : all_weights;
    plan.of(PlanPurpose::kMasters) = masters[part];
    plan.of(PlanPurpose::kMoments) = 2 * owned[part] * kFloatBytes;
    plan.of(PlanPurpose::kGradientSums) = (sharding.sums ? owned[part] : all) * kSumBytes;
    plan.of(PlanPurpose::kSnapshot) =
        kCheckpointBytes * stored[static_cast<size_t>(data_rank(rank))];
  }
}

/// What a rank holds beside its states.
void Plan::plan_rank(int rank) {
  RankPlan& plan = ranks_[static_cast<size_t>(rank)];
  const Share& share = shares_.at(samples_of(rank));
  plan.of(PlanPurpose::kUnitBuffers) = share.buffer_bytes;
  plan.of(PlanPurpose::kActivations) = share.arena_bytes;
  plan.of(PlanPurpose::kKernelScratch) = setup_.threads * kernels::kScratchBytesPerThread;
  plan.of(PlanPurpose::kBatches) =
      data::batch_loader_bytes(partition_, data_rank(rank), setup_.spec.data.sequence_length);
  if (setup_.shares_memory) {
    const layout::Mesh& mesh = setup_.mesh;
    int64_t& shared = plan.of(PlanPurpose::kCommunicator);
    // Checkpoints are agreed upon in a group of their own.
    shared = segment_bytes(mesh.size()) * (setup_.writes_checkpoints ? 2 : 1);
    // A group of all ranks is the world itself.
    for (const int members : {mesh.fsdp, mesh.dp})
      shared += members == mesh.size() ? 0 : segment_bytes(members);
  }
  plan.of(PlanPurpose::kProcess) = kProcessBytes;
}

int Plan::largest_rank() const {
  const auto less = [](const RankPlan& a, const RankPlan& b) { return a.total() < b.total(); };
  return static_cast<int>(std::max_element(ranks_.begin(), ranks_.end(), less) - ranks_.begin());
}

StepCost Plan::step_of(int rank) const {
  const layout::Mesh& mesh = setup_.mesh;
  const layout::Coordinate at = layout::coordinate_of(mesh, rank);
  // A group's ring keeps the order of the world's.
  std::vector<int> shard_ring;
  for (const int member : ring_) {
    const layout::Coordinate place = layout::coordinate_of(mesh, member);
    if (place.pp == at.pp && place.dp == at.dp) shard_ring.push_back(place.fsdp);
  }
  const auto ring_of_copies = [&](int unit) {
    std::vector<int> ring;
    for (const int member : ring_) {
      const layout::Coordinate place = layout::coordinate_of(mesh, member);
      if (place.fsdp == at.fsdp && layout_.holds(unit, place))
        ring.push_back(layout_.copies(unit, place).index);
    }
    return ring;
  };
  const auto self = std::find(shard_ring.begin(), shard_ring.end(), at.fsdp);
  layout::Coordinate next = at;  // ring_ is empty for the order of ranks
  next.fsdp = (at.fsdp + 1) % mesh.fsdp;
  if (self != shard_ring.end())
    next.fsdp = self + 1 == shard_ring.end() ? shard_ring.front() : self[1];
  const auto sent_by = [&](const Instruction& instruction) -> int64_t {
    if (instruction.kind == InstructionKind::kReduceControl) {
      return comm::all_reduce_bytes_sent(mesh.size(), rank, sizeof(ControlWord) / sizeof(int64_t),
                                         DType::kInt64, ring_);
    }
    const int unit = instruction.unit;
    if (unit < 0) return 0;
    const int64_t all = layout_.elements(unit);
    const int64_t own = layout_.shard(unit, at).size();
    switch (instruction.kind) {
      case InstructionKind::kReduce:
        return (all - own) * size_of(DType::kInt64);
      case InstructionKind::kAllReduce:
        return comm::all_reduce_bytes_sent(layout_.copies(unit, at).count,
                                           layout_.copies(unit, at).index, own, DType::kInt64,
                                           ring_of_copies(unit));
      case InstructionKind::kGather:
        return comm::all_gather_bytes_sent(mesh.fsdp, own, layout_.shard(unit, next).size(), all,
                                           layout_.unit(unit).dtype);
      default:
        return 0;
    }
  };
  const Share& share = shares_.at(samples_of(rank));
  StepCost cost{.flops = samples_of(rank) * flops_per_sample_};
  for (size_t i = 0; i < share.program.listed().size(); ++i)
    cost.bytes_sent += share.program.times(i) * sent_by(share.program.listed()[i]);
  return cost;
}

}  // namespace trainyard::engine

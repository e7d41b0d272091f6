#include "worker/job/plan.h"

#include <algorithm>
#include <numeric>

#include "kernels/cpu/cpu_limits.h"
#include "worker/comm/formulas.h"
#include "worker/comm/host/memory_segment.h"
#include "worker/comm/host/ring_order.h"
#include "worker/data/batch_loader.h"
#include "worker/engine/interpreter.h"
#include "worker/engine/limits.h"
#include "worker/memory/activation_plan.h"
#include "worker/memory/unit_buffers.h"
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
  for (int unit = 0; unit < plan.layout_.units(); ++unit)
    plan.counts_.push_back(plan.layout_.part_sizes(unit));
  const std::vector<int> named(parallelism.ring_order.begin(), parallelism.ring_order.end());
  TRAINYARD_ASSIGN(plan.ring_, comm::complete_ring_order(named, setup.mesh.size()));

  for (int rank = 0; rank < setup.mesh.size(); ++rank) {
    const int64_t samples = plan.samples_of(rank);
    if (!plan.shares_.contains(samples)) plan.shares_[samples] = plan.make_share(model, rank);
    plan.ranks_.push_back(plan.plan_rank(model, rank));
  }
  return plan;
}

int64_t Plan::data_rank(int rank) const {
  return layout::data_rank(setup_.mesh, layout::coordinate_of(setup_.mesh, rank));
}

int64_t Plan::samples_of(int rank) const { return partition_.share(data_rank(rank)).size(); }

Plan::Share Plan::make_share(const Model& model, int rank) const {
  const int64_t most = partition_.micro_batches_max();
  const std::vector<int64_t> sizes = partition_.sizes(data_rank(rank), 0, most);
  Lowering lowering{.stage_end = {static_cast<int>(model.layers.size())},
                    .layout = &layout_,
                    .at = layout::coordinate_of(setup_.mesh, rank),
                    .micro_batches = static_cast<int>(sizes.size())};
  Share share;
  share.program = lower(one_stage_schedule(static_cast<int>(most)), lowering);
  share.buffer_bytes = UnitBuffers(share.program, layout_).bytes();
  // Nothing of a micro-batch outlives it, so that equal ones lie in the same place: the first and
  // the last stand for all.
  std::vector<int64_t> different = {sizes.front()};
  if (sizes.back() != sizes.front()) different.push_back(sizes.back());
  const auto passes = lower(one_stage_schedule(static_cast<int>(different.size())),
                            {.stage_end = lowering.stage_end});
  share.activation_bytes =
      ActivationPlan::make(model, passes, different, setup_.spec.data.sequence_length,
                           compute_type(setup_.spec.precision))
          .bytes();
  return share;
}

RankPlan Plan::plan_rank(const Model& model, int rank) const {
  constexpr auto kFloatBytes = static_cast<int64_t>(sizeof(float));
  constexpr auto kSumBytes = static_cast<int64_t>(sizeof(int64_t));
  const layout::Coordinate at = layout::coordinate_of(setup_.mesh, rank);
  const layout::Sharding& sharding = layout_.sharding();
  RankPlan plan;
  for (int unit = 0; unit < layout_.units(); ++unit) {
    const int64_t all = layout_.elements(unit, at);
    const int64_t own = layout_.shard(unit, at).size();
    const DType type = layout_.unit(unit).dtype;
    plan.of(PlanPurpose::kWeights) += (sharding.weights ? own : all) * size_of(type);
    if (type != DType::kFloat32) plan.of(PlanPurpose::kMasters) += own * kFloatBytes;
    plan.of(PlanPurpose::kMoments) += 2 * own * kFloatBytes;
    plan.of(PlanPurpose::kGradientSums) += (sharding.sums ? own : all) * kSumBytes;
  }
  const Share& share = shares_.at(samples_of(rank));
  plan.of(PlanPurpose::kUnitBuffers) = share.buffer_bytes;
  plan.of(PlanPurpose::kActivations) = share.activation_bytes;
  plan.of(PlanPurpose::kKernelScratch) = setup_.threads * kernels::kScratchBytesPerThread;
  plan.of(PlanPurpose::kBatches) =
      data::batch_loader_bytes(partition_, data_rank(rank), setup_.spec.data.sequence_length);
  for (size_t param = 0; setup_.writes_checkpoints && param < model.params.size(); ++param) {
    plan.of(PlanPurpose::kSnapshot) +=
        kCheckpointBytes * layout_.stored(static_cast<int>(param), at).size();
  }
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
  return plan;
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
  const int64_t samples = samples_of(rank);
  StepCost cost{.flops = samples * flops_per_sample_};
  const auto sent_by = [&](const Instruction& instruction) -> int64_t {
    const auto unit = static_cast<size_t>(std::max(0, instruction.unit));
    switch (instruction.kind) {
      case InstructionKind::kReduce:
        return comm::reduce_scatter_bytes_sent(at.fsdp, counts_[unit], DType::kInt64);
      case InstructionKind::kAllReduce:
        return comm::all_reduce_bytes_sent(layout_.copies(instruction.unit, at).count,
                                           layout_.copies(instruction.unit, at).index,
                                           counts_[unit][static_cast<size_t>(at.fsdp)],
                                           DType::kInt64, ring_of_copies(instruction.unit));
      case InstructionKind::kGather:
        return comm::all_gather_bytes_sent(at.fsdp, counts_[unit],
                                           layout_.unit(instruction.unit).dtype, shard_ring);
      case InstructionKind::kReduceControl:
        return comm::all_reduce_bytes_sent(mesh.size(), rank, sizeof(ControlWord) / sizeof(int64_t),
                                           DType::kInt64, ring_);
      default:
        return 0;
    }
  };
  const StepProgram& program = shares_.at(samples).program;
  for (size_t i = 0; i < program.listed().size(); ++i)
    cost.bytes_sent += program.times(i) * sent_by(program.listed()[i]);
  return cost;
}

}  // namespace trainyard::engine

#include "worker/job/memory_plan.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "worker/comm/formulas.h"
#include "worker/comm/host/memory_segment.h"
#include "worker/comm/host/ring_order.h"
#include "worker/data/batch_loader.h"
#include "worker/engine/limits.h"
#include "worker/engine/optimizer.h"
#include "worker/job/owned_parts.h"
#include "worker/model/family.h"
#include "worker/model/recompute.h"
#include "worker/program/lower.h"
#include "worker/program/schedules/schedules.h"
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

std::string_view name_of(MemoryPurpose purpose) {
  constexpr std::array<std::string_view, kMemoryPurposes> kNames = {
      "weights",     "master weights", "moments",       "gradient sums",       "unit buffers",
      "activations", "kernel scratch", "token batches", "checkpoint snapshot", "shared memory",
      "process"};
  return kNames[static_cast<size_t>(purpose)];
}

int64_t RankMemory::total() const {
  return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
}

int64_t RankMemory::engine() const {
  return of(MemoryPurpose::kWeights) + of(MemoryPurpose::kMasters) + of(MemoryPurpose::kMoments) +
         of(MemoryPurpose::kGradientSums) + of(MemoryPurpose::kUnitBuffers) +
         of(MemoryPurpose::kActivations) + of(MemoryPurpose::kKernelScratch);
}

Result<MemoryPlan> MemoryPlan::make(const MemoryPlanSetup& setup) {
  TRAINYARD_TRY(check_batch(setup.spec, setup.mesh.data_ranks()));
  MemoryPlan plan(setup);
  plan.partition_ = partition_of(setup.spec.batch, setup.mesh.data_ranks());
  TRAINYARD_ASSIGN(const Model model, build_model(setup.spec.model));
  plan.parameters_ = model.parameter_count();
  const int64_t tokens = setup.spec.data.sequence_length;
  TRAINYARD_ASSIGN(plan.stages_, stages_of(model, setup.spec, setup.mesh));
  const api::ParallelismSpec& parallelism = setup.spec.parallelism;
  plan.recomputed_ = recomputed_layers(model, parallelism.recompute);
  for (const Layer& layer : model.layers) {
    plan.flops_per_sample_.push_back(flops_of(layer,
                                              {.rows = tokens,
                                               .tokens_per_sample = tokens,
                                               .compute = compute_type(setup.spec.precision)},
                                              parallelism.recompute));
  }

  TRAINYARD_ASSIGN(plan.layout_, make_layout(model,
                                             make_units(model, compute_type(setup.spec.precision),
                                                        setup.unit_bytes, plan.stages_),
                                             parallelism, setup.mesh));
  const std::vector<int> named(parallelism.ring_order.begin(), parallelism.ring_order.end());
  TRAINYARD_ASSIGN(plan.ring_, comm::complete_ring_order(named, setup.mesh.size()));

  for (int rank = 0; rank < setup.mesh.size(); ++rank) {
    const auto kind = plan.kind_of(rank);
    if (!plan.shares_.contains(kind)) plan.shares_[kind] = plan.make_share(model, rank);
  }
  plan.plan_states(static_cast<int>(model.params.size()));
  for (int rank = 0; rank < setup.mesh.size(); ++rank)
    plan.plan_rank(rank);
  return plan;
}

int64_t MemoryPlan::data_rank(int rank) const {
  return layout::data_rank(setup_.mesh, layout::coordinate_of(setup_.mesh, rank));
}

int64_t MemoryPlan::samples_of(int rank) const { return partition_.share(data_rank(rank)).size(); }

std::pair<int, int64_t> MemoryPlan::kind_of(int rank) const {
  return {layout::coordinate_of(setup_.mesh, rank).pp, samples_of(rank)};
}

Lowering MemoryPlan::lowering_of(int rank) const {
  return {.stages = stages_,
          .layout = &layout_,
          .at = layout::coordinate_of(setup_.mesh, rank),
          .micro_batches = static_cast<int>(partition_.micro_batches(data_rank(rank))),
          .recomputed = recomputed_};
}

std::vector<int64_t> MemoryPlan::micro_batches_of(int rank) const {
  const int64_t d = data_rank(rank);
  return partition_.sizes(d, 0, partition_.micro_batches(d));
}

MemoryPlan::Share MemoryPlan::make_share(const Model& model, int rank) const {
  const StepShape shape = step_shape(setup_.spec, partition_, data_rank(rank));
  const Lowering lowering = lowering_of(rank);
  StepProgram program =
      lower(training_schedule(shape.schedule, stages_, shape.rounds, lowering.at.pp), lowering);
  const StepPlan plan = make_step_plan(program, model, lowering, shape);
  return {.buffer_bytes = plan.buffer_bytes(),
          .arena_bytes = plan.arena_bytes(),
          .program = std::move(program)};
}

/// Weights, optimizer states, sums and snapshots of all ranks.
void MemoryPlan::plan_states(int params) {
  ranks_.resize(static_cast<size_t>(setup_.mesh.size()));
  for (int pp = 0; pp < setup_.mesh.pp; ++pp)
    plan_stage(pp, params);
}

void MemoryPlan::plan_stage(int pp, int params) {
  constexpr auto kFloatBytes = static_cast<int64_t>(sizeof(float));
  constexpr auto kSumBytes = static_cast<int64_t>(sizeof(int64_t));
  const layout::Mesh& mesh = setup_.mesh;
  const layout::Sharding& sharding = layout_.sharding();
  const auto type = [this](int unit) { return layout_.unit(unit).dtype; };
  const auto owned_of = [&](const std::function<int64_t(int unit)>& bytes) {
    return owned_bytes(layout_, mesh.fsdp, pp, bytes);
  };
  const std::vector<int64_t> owned = owned_of([](int) { return 1; });
  const std::vector<int64_t> owned_weights =
      owned_of([&](int unit) { return size_of(type(unit)); });
  const std::vector<int64_t> masters =
      owned_of([&](int unit) { return type(unit) == DType::kFloat32 ? 0 : kFloatBytes; });
  int64_t all = 0;
  int64_t all_weights = 0;
  for (int unit = 0; unit < layout_.units(); ++unit) {
    const int64_t elements = layout_.elements(unit, {.pp = pp});
    all += elements;
    all_weights += elements * size_of(type(unit));
  }
  std::vector<int64_t> stored(static_cast<size_t>(mesh.data_ranks()));
  if (setup_.writes_checkpoints) stored = stored_elements(layout_, mesh, pp, params);
  for (int rank = 0; rank < mesh.size(); ++rank) {
    const layout::Coordinate at = layout::coordinate_of(mesh, rank);
    if (at.pp != pp) continue;
    const auto part = static_cast<size_t>(at.fsdp);
    RankMemory& plan = ranks_[static_cast<size_t>(rank)];
    plan.of(MemoryPurpose::kWeights) = sharding.weights ? owned_weights[part] : all_weights;
    plan.of(MemoryPurpose::kMasters) = masters[part];
    plan.of(MemoryPurpose::kMoments) = 2 * owned[part] * kFloatBytes;
    plan.of(MemoryPurpose::kGradientSums) = (sharding.sums ? owned[part] : all) * kSumBytes;
    plan.of(MemoryPurpose::kSnapshot) =
        kCheckpointBytes * stored[static_cast<size_t>(data_rank(rank))];
  }
}

/// Shared memory of a rank's groups. One of all ranks is the world itself, but for channels.
int64_t MemoryPlan::segments(const layout::Coordinate& at) const {
  const layout::Mesh& mesh = setup_.mesh;
  // Checkpoints are agreed upon in a group of their own.
  int64_t bytes = segment_bytes(mesh.size()) * (setup_.writes_checkpoints ? 2 : 1);
  const bool at_an_end = at.pp == 0 || at.pp == mesh.pp - 1;
  for (const int members : {mesh.fsdp, mesh.dp, mesh.pp > 1 && at_an_end ? 2 * mesh.dp : 1})
    bytes += members == mesh.size() ? 0 : segment_bytes(members);
  int neighbours = (at.pp > 0 ? 1 : 0) + (at.pp + 1 < mesh.pp ? 1 : 0);
  if (stages_.per_rank > 1) neighbours = 2;
  return bytes + int64_t{2} * neighbours * segment_bytes(2);
}

/// What a rank holds beside its states.
void MemoryPlan::plan_rank(int rank) {
  RankMemory& plan = ranks_[static_cast<size_t>(rank)];
  const Share& share = shares_.at(kind_of(rank));
  plan.of(MemoryPurpose::kUnitBuffers) = share.buffer_bytes;
  plan.of(MemoryPurpose::kActivations) = share.arena_bytes;
  plan.of(MemoryPurpose::kKernelScratch) = setup_.kernel_scratch_bytes + kStepWordsBytes;
  plan.of(MemoryPurpose::kBatches) =
      data::batch_loader_bytes(partition_, data_rank(rank), setup_.spec.data.sequence_length);
  if (setup_.shares_memory) {
    plan.of(MemoryPurpose::kCommunicator) = segments(layout::coordinate_of(setup_.mesh, rank));
  }
  plan.of(MemoryPurpose::kProcess) = kProcessBytes;
}

int MemoryPlan::largest_rank() const {
  const auto less = [](const RankMemory& a, const RankMemory& b) { return a.total() < b.total(); };
  return static_cast<int>(std::max_element(ranks_.begin(), ranks_.end(), less) - ranks_.begin());
}

OpFlops MemoryPlan::flops_of_stage(int stage) const {
  OpFlops sum;
  const layout::Range layers = stages_.layers(stage);
  for (int64_t layer = layers.begin; layer < layers.end; ++layer) {
    const OpFlops& flops = flops_per_sample(static_cast<int>(layer));
    sum.forward += flops.forward;
    sum.backward_input += flops.backward_input;
    sum.backward_weight += flops.backward_weight;
    sum.recompute += flops.recompute;
  }
  return sum;
}

/// Payload that a collective of this instruction costs the rank.
int64_t MemoryPlan::bytes_sent_by(const Instruction& instruction, int rank) const {
  const layout::Mesh& mesh = setup_.mesh;
  const layout::Coordinate at = layout::coordinate_of(mesh, rank);
  if (instruction.kind == InstructionKind::kReduceControl) {
    return comm::all_reduce_bytes_sent(mesh.size(), rank, sizeof(ControlWord) / sizeof(int64_t),
                                       DType::kInt64, ring_);
  }
  const int unit = instruction.unit;
  const int64_t all = layout_.elements(unit);
  const int64_t own = layout_.shard(unit, at).size();
  // A group's ring keeps the order of the world's; ring_ is empty for the order of ranks.
  std::vector<int> ring;
  switch (instruction.kind) {
    case InstructionKind::kReduce:
      return (all - own) * size_of(DType::kInt64);
    case InstructionKind::kAllReduce:
      for (const int member : ring_) {
        const layout::Coordinate place = layout::coordinate_of(mesh, member);
        if (place.fsdp == at.fsdp && layout_.holds(unit, place))
          ring.push_back(layout_.copies(unit, place).index);
      }
      return comm::all_reduce_bytes_sent(layout_.copies(unit, at).count,
                                         layout_.copies(unit, at).index, own, DType::kInt64, ring);
    case InstructionKind::kGather: {
      for (const int member : ring_) {
        const layout::Coordinate place = layout::coordinate_of(mesh, member);
        if (place.pp == at.pp && place.dp == at.dp) ring.push_back(place.fsdp);
      }
      const auto self = std::find(ring.begin(), ring.end(), at.fsdp);
      layout::Coordinate next = at;
      next.fsdp = (at.fsdp + 1) % mesh.fsdp;
      if (self != ring.end()) next.fsdp = self + 1 == ring.end() ? ring.front() : self[1];
      return comm::all_gather_bytes_sent(mesh.fsdp, own, layout_.shard(unit, next).size(), all,
                                         layout_.unit(unit).dtype);
    }
    default:
      return 0;
  }
}

StepCost MemoryPlan::step_of(int rank) const {
  const auto add = [](StepCost& cost, const SentBytes& sent) {
    const auto same = std::find_if(cost.sent.begin(), cost.sent.end(), [&](const SentBytes& other) {
      return other.operation == sent.operation && other.group == sent.group;
    });
    if (same == cost.sent.end()) {
      cost.sent.push_back(sent);
    } else {
      same->times += sent.times;
      same->bytes += sent.bytes;
    }
    cost.bytes_sent += sent.bytes;
  };
  StepCost cost;
  const int64_t samples = samples_of(rank);
  const auto micro_batches = static_cast<int64_t>(micro_batches_of(rank).size());
  // Messages carry the residual stream.
  const int64_t message_bytes = samples * setup_.spec.data.sequence_length *
                                setup_.spec.model.hidden * size_of(DType::kFloat32);
  for (int stage = layout::coordinate_of(setup_.mesh, rank).pp; stage < stages_.size();
       stage += stages_.ranks()) {
    const OpFlops flops = flops_of_stage(stage);
    cost.flops += samples * (flops.forward + flops.backward_input + flops.backward_weight);
    cost.recompute_flops += samples * flops.recompute;
    if (stages_.has_after(stage))
      add(cost, {"point_to_point", "activations", micro_batches, message_bytes});
    if (stages_.has_before(stage))
      add(cost, {"point_to_point", "gradients", micro_batches, message_bytes});
  }
  const StepProgram& program = program_of(rank);
  for (size_t i = 0; i < program.listed().size(); ++i) {
    const Instruction& instruction = program.listed()[i];
    const auto sent = [&](std::string_view operation, std::string_view group) {
      const int64_t bytes = bytes_sent_by(instruction, rank);
      add(cost, {operation, group, program.times(i), program.times(i) * bytes});
    };
    switch (instruction.kind) {
      case InstructionKind::kReduceControl:
        sent("all_reduce", "world");
        break;
      case InstructionKind::kReduce:
        sent("reduce_scatter", "shard");
        break;
      case InstructionKind::kGather:
        sent("all_gather", "shard");
        break;
      case InstructionKind::kAllReduce:
        sent("all_reduce", layout_.unit(instruction.unit).stages.size() > 1 ? "tied" : "replica");
        break;
      default:
        break;
    }
  }
  return cost;
}

}  // namespace trainyard::engine

#include "worker/job/memory_plan.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "worker/checkpoint/memory_slots.h"
#include "worker/comm/formulas.h"
#include "worker/comm/host/memory_segment.h"
#include "worker/comm/host/ring_order.h"
#include "worker/comm/staged_communicator.h"
#include "worker/data/batch_loader.h"
#include "worker/device/cuda_plan.h"
#include "worker/engine/limits.h"
#include "worker/engine/optimizer.h"
#include "worker/job/owned_parts.h"
#include "worker/model/family.h"
#include "worker/model/parallelize.h"
#include "worker/model/recompute.h"
#include "worker/program/lower.h"
#include "worker/program/schedules/schedules.h"
#include "worker/state/units.h"

namespace trainyard::engine {
namespace {

/// Bytes of an element in a checkpoint: fp32 master and two moments.
constexpr int64_t kCheckpointBytes = 3 * static_cast<int64_t>(sizeof(float));

bool on_gpu(const api::EngineSpec& spec) { return spec.device == api::DeviceKind::kCuda; }

/// A member's part of what a group shares.
int64_t segment_bytes(int members) {
  return members > 1 ? comm::MemorySegment::total_bytes(members) / members : 0;
}

}  // namespace

std::string_view name_of(MemoryPurpose purpose) {
  constexpr std::array<std::string_view, kMemoryPurposes> kNames = {
      "weights",       "master weights", "moments",       "gradient sums",       "unit buffers",
      "activations",   "kernel scratch", "token batches", "checkpoint snapshot", "states in memory",
      "shared memory", "process"};
  return kNames[static_cast<size_t>(purpose)];
}

int64_t RankMemory::total() const {
  return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
}

int64_t RankMemory::engine() const {
  int64_t sum = 0;
  for (size_t purpose = 0; purpose < kMemoryPurposes; ++purpose)
    sum += is_on_device(static_cast<MemoryPurpose>(purpose)) ? bytes[purpose] : 0;
  return sum;
}

Result<MemoryPlan> MemoryPlan::make(const MemoryPlanSetup& setup) {
  TRAINYARD_TRY(check_batch(setup.spec, setup.mesh.data_ranks()));
  MemoryPlan plan(setup);
  plan.partition_ = partition_of(setup.spec, setup.mesh.data_ranks());
  TRAINYARD_ASSIGN(const Model model,
                   build_model(setup.spec.model, setup.spec.numerics.tensor_chunks.value_or(0)));
  plan.parameters_ = model.parameter_count();
  plan.kernel_scratch_bytes_ = setup.kernel_scratch_bytes;
  if (on_gpu(setup.spec)) {
    TRAINYARD_ASSIGN(const KernelShapes shapes, kernel_shapes(setup.spec));
    plan.kernel_scratch_bytes_ = cuda_scratch(shapes).bytes;
  }
  const int64_t tokens = setup.spec.data.sequence_length;
  for (const Layer& layer : model.layers) {
    const OpFlops flops = flops_of(model, layer, {.rows = tokens, .tokens_per_sample = tokens},
                                   api::Recompute::kNone);
    plan.model_flops_ += flops.forward + flops.backward_input + flops.backward_weight;
  }
  TRAINYARD_ASSIGN(plan.stages_, stages_of(model, setup.spec, setup.mesh));
  const api::ParallelismSpec& parallelism = setup.spec.parallelism;
  plan.recomputed_ = recomputed_layers(model, parallelism.recompute);
  TRAINYARD_ASSIGN(const layout::Layout layout,
                   make_layout(model,
                               make_units(model, setup.formats.compute, setup.unit_bytes,
                                          plan.stages_, setup.mesh.slices),
                               parallelism, setup.mesh));
  const int params = static_cast<int>(model.params.size());
  const std::vector<int> named(parallelism.ring_order.begin(), parallelism.ring_order.end());
  TRAINYARD_ASSIGN(plan.ring_, comm::complete_ring_order(named, setup.mesh.size()));

  plan.ranks_.resize(static_cast<size_t>(setup.mesh.size()));
  for (int tp = 0; tp < setup.mesh.tp; ++tp) {
    TRAINYARD_ASSIGN(Model whole,
                     build_model(setup.spec.model, setup.spec.numerics.tensor_chunks.value_or(0)));
    TRAINYARD_ASSIGN(const Model part, parallelize(std::move(whole), setup.mesh, {.tp = tp}));
    Place& place = plan.places_.emplace_back();
    place.layout = layout.at_tensor_rank(tp);
    for (const Layer& layer : part.layers) {
      place.flops_per_sample.push_back(flops_of(
          part, layer, {.rows = tokens, .tokens_per_sample = tokens}, parallelism.recompute));
      place.meetings.push_back(tensor_payloads(layer, setup.formats, parallelism.recompute));
    }
    for (int rank = tp; rank < setup.mesh.size(); rank += setup.mesh.tp) {
      const auto kind = plan.kind_of(rank);
      if (!plan.shares_.contains(kind)) plan.shares_[kind] = plan.make_share(part, rank);
    }
    for (int pp = 0; pp < setup.mesh.pp; ++pp)
      plan.plan_stage(pp, tp, params);
  }
  for (int rank = 0; rank < setup.mesh.size(); ++rank)
    plan.plan_rank(rank);
  plan.plan_copies();
  return plan;
}

int64_t MemoryPlan::data_rank(int rank) const {
  return layout::data_rank(setup_.mesh, coordinate(rank));
}

int64_t MemoryPlan::samples_of(int rank) const { return partition_.share(data_rank(rank)).size(); }

std::tuple<int, int, int64_t> MemoryPlan::kind_of(int rank) const {
  const layout::Coordinate at = coordinate(rank);
  return {at.pp, at.tp, samples_of(rank)};
}

Lowering MemoryPlan::lowering_of(int rank) const {
  return {.stages = stages_,
          .layout = &place_of(rank).layout,
          .at = coordinate(rank),
          .micro_batches = static_cast<int>(partition_.micro_batches(data_rank(rank))),
          .recomputed = recomputed_};
}

std::vector<int64_t> MemoryPlan::micro_batches_of(int rank) const {
  const int64_t d = data_rank(rank);
  return partition_.sizes(d, 0, partition_.micro_batches(d));
}

MemoryPlan::Share MemoryPlan::make_share(const Model& model, int rank) const {
  StepShape shape = step_shape(setup_.spec, partition_, data_rank(rank), setup_.formats);
  shape.is_bound = setup_.is_bound;
  const Lowering lowering = lowering_of(rank);
  StepProgram program =
      lower(training_schedule(shape.schedule, stages_, shape.rounds, lowering.at.pp), lowering);
  const StepPlan plan = make_step_plan(program, model, lowering, shape);
  return {.buffer_bytes = plan.buffer_bytes(),
          .arena_bytes = plan.arena_bytes(),
          .program = std::move(program)};
}

/// Weights, optimizer states, sums and snapshots of the ranks of a stage at a place of the tp axis.
void MemoryPlan::plan_stage(int pp, int tp, int params) {
  constexpr auto kFloatBytes = static_cast<int64_t>(sizeof(float));
  const layout::Mesh& mesh = setup_.mesh;
  const layout::Layout& layout = places_[static_cast<size_t>(tp)].layout;
  const layout::Sharding& sharding = layout.sharding();
  const auto type = [&layout](int unit) { return layout.unit(unit).dtype; };
  const auto owned_of = [&](const std::function<int64_t(int unit)>& bytes) {
    return owned_bytes(layout, mesh.fsdp, pp, bytes);
  };
  const std::vector<int64_t> owned = owned_of([](int) { return 1; });
  const std::vector<int64_t> owned_weights =
      owned_of([&](int unit) { return size_of(type(unit)); });
  const std::vector<int64_t> masters =
      owned_of([&](int unit) { return type(unit) == DType::kFloat32 ? 0 : kFloatBytes; });
  int64_t all = 0;
  int64_t all_weights = 0;
  for (int unit = 0; unit < layout.units(); ++unit) {
    const int64_t elements = layout.elements(unit, {.pp = pp});
    all += elements;
    all_weights += elements * size_of(type(unit));
  }
  std::vector<std::vector<int64_t>> stored;  // by cp coordinate
  for (int cp = 0; cp < mesh.cp; ++cp) {
    stored.emplace_back(static_cast<size_t>(mesh.data_ranks()));
    if (setup_.writes_checkpoints)
      stored.back() = stored_elements(layout, mesh, {.pp = pp, .cp = cp, .tp = tp}, params);
  }
  for (int rank = 0; rank < mesh.size(); ++rank) {
    const layout::Coordinate at = coordinate(rank);
    if (at.pp != pp || at.tp != tp) continue;
    const auto part = static_cast<size_t>(at.fsdp);
    RankMemory& plan = ranks_[static_cast<size_t>(rank)];
    plan.of(MemoryPurpose::kWeights) = sharding.weights ? owned_weights[part] : all_weights;
    plan.of(MemoryPurpose::kMasters) = masters[part];
    plan.of(MemoryPurpose::kMoments) = 2 * owned[part] * kFloatBytes;
    plan.of(MemoryPurpose::kGradientSums) =
        (sharding.sums ? owned[part] : all) * size_of(setup_.formats.sums);
    plan.of(MemoryPurpose::kSnapshot) =
        kCheckpointBytes * stored[static_cast<size_t>(at.cp)][static_cast<size_t>(data_rank(rank))];
    if (setup_.writes_checkpoints && setup_.keeps_states) {
      plan.of(MemoryPurpose::kStates) =
          checkpoint::MemorySlots::kSlots * kCheckpointBytes * owned[part] -
          plan.of(MemoryPurpose::kSnapshot);
    }
  }
}

/// Copies of the states of ranks on the node before, and the group in which they travel.
void MemoryPlan::plan_copies() {
  const int size = setup_.mesh.size();
  const int distance = setup_.ranks_with_copies;
  const bool whole_nodes = distance > 0 && distance < size && size % distance == 0;
  if (!setup_.writes_checkpoints || !setup_.keeps_states || !whole_nodes) return;
  for (int rank = 0; rank < size; ++rank) {
    const RankMemory& ward = ranks_[static_cast<size_t>((rank + size - distance) % size)];
    RankMemory& plan = ranks_[static_cast<size_t>(rank)];
    // A checkpoint has the moments and a value beside them.
    plan.of(MemoryPurpose::kStates) +=
        checkpoint::MemorySlots::kWardSlots * ward.of(MemoryPurpose::kMoments) / 2 * 3;
    if (setup_.shares_memory)
      plan.of(MemoryPurpose::kCommunicator) += segment_bytes(size / distance);
  }
}

/// Of the groups of states in which a rank meets others.
std::array<int, 6> MemoryPlan::state_groups(const layout::Coordinate& at) const {
  const layout::Mesh& mesh = setup_.mesh;
  const bool at_an_end = at.pp == 0 || at.pp == mesh.pp - 1;
  const int copies = mesh.copies();
  return {mesh.fsdp,
          mesh.tp,
          copies,
          mesh.pp > 1 && at_an_end ? 2 * copies : 1,
          mesh.slices ? copies * mesh.tp : 1,
          mesh.cp};
}

/// Channels of a rank: two to and from each neighbour in its pipeline.
int MemoryPlan::channels(const layout::Coordinate& at) const {
  const int neighbours = (at.pp > 0 ? 1 : 0) + (at.pp + 1 < setup_.mesh.pp ? 1 : 0);
  return 2 * (stages_.per_rank > 1 ? 2 : neighbours);
}

/// Tracks that a rank may fill while it trains: its own, its device's, and those of its groups, of
/// which that of all ranks and that of its shard may be of this rank alone.
int64_t MemoryPlan::tracks(const layout::Coordinate& at) const {
  const std::array<int, 6> groups = state_groups(at);
  const auto is_own = [this](int members) {
    return members != setup_.mesh.size() || on_gpu(setup_.spec);
  };
  int64_t own = is_own(groups[0]) ? 1 : 0;
  for (size_t i = 1; i < groups.size(); ++i)
    own += groups[i] > 1 && is_own(groups[i]) ? 1 : 0;
  return (on_gpu(setup_.spec) ? 3 : 2) + own + channels(at);
}

/// Shared memory of a rank's groups. One of all ranks is the world itself, but for channels and for
/// groups that work in the memory of GPUs.
int64_t MemoryPlan::segments(const layout::Coordinate& at) const {
  const layout::Mesh& mesh = setup_.mesh;
  // Checkpoints are agreed upon in a group of their own.
  int64_t bytes = segment_bytes(mesh.size()) * (setup_.writes_checkpoints ? 2 : 1);
  // And failures are heard of in another, beside NCCL.
  if (nccl_bytes_of(at) > 0) bytes += segment_bytes(mesh.size());
  for (const int members : state_groups(at))
    bytes += members == mesh.size() && !on_gpu(setup_.spec) ? 0 : segment_bytes(members);
  return bytes + channels(at) * segment_bytes(2);
}

/// What a rank holds beside its states.
void MemoryPlan::plan_rank(int rank) {
  RankMemory& plan = ranks_[static_cast<size_t>(rank)];
  const Share& share = shares_.at(kind_of(rank));
  plan.of(MemoryPurpose::kUnitBuffers) = share.buffer_bytes;
  plan.of(MemoryPurpose::kActivations) = share.arena_bytes;
  plan.of(MemoryPurpose::kKernelScratch) = kernel_scratch_bytes_ + kStepWordsBytes;
  plan.of(MemoryPurpose::kBatches) =
      data::batch_loader_bytes(partition_, data_rank(rank), setup_.spec.data.sequence_length,
                               setup_.spec.data.documents == api::Documents::kIsolate);
  if (setup_.shares_memory) {
    plan.of(MemoryPurpose::kCommunicator) = segments(coordinate(rank));
  }
  plan.of(MemoryPurpose::kProcess) =
      kProcessBytes + tracks(coordinate(rank)) * setup_.trace_ring_bytes;
}

int64_t MemoryPlan::host_bytes(int rank) const {
  const RankMemory& plan = ranks_[static_cast<size_t>(rank)];
  return plan.total() - gpu_bytes(rank) + pinned_bytes(rank);
}

int64_t MemoryPlan::own_bytes(int rank) const {
  const RankMemory& plan = ranks_[static_cast<size_t>(rank)];
  return host_bytes(rank) - plan.of(MemoryPurpose::kCommunicator) - plan.of(MemoryPurpose::kStates);
}

int64_t MemoryPlan::pinned_bytes(int rank) const {
  if (!on_gpu(setup_.spec)) return 0;
  const layout::Coordinate at = coordinate(rank);
  if (setup_.spec.runtime.transport == api::Transport::kNccl) return kPinnedBytes;
  int64_t bytes = kPinnedBytes + channels(at) * comm::staged_bytes(2);
  for (const int members : state_groups(at))
    bytes += comm::staged_bytes(members);
  return bytes;
}

int64_t MemoryPlan::driver_bytes(int rank) const {
  return on_gpu(setup_.spec) ? kGpuContextBytes + nccl_bytes(rank) : 0;
}

int64_t MemoryPlan::nccl_bytes(int rank) const { return nccl_bytes_of(coordinate(rank)); }

int64_t MemoryPlan::nccl_bytes_of(const layout::Coordinate& at) const {
  if (!on_gpu(setup_.spec) || setup_.spec.runtime.transport != api::Transport::kNccl) return 0;
  int64_t groups = channels(at);
  for (const int members : state_groups(at))
    groups += members > 1 ? 1 : 0;
  return groups * kNcclGroupBytes;
}

int64_t MemoryPlan::gpu_bytes(int rank) const {
  return on_gpu(setup_.spec) ? ranks_[static_cast<size_t>(rank)].engine() : 0;
}

int MemoryPlan::largest_rank() const {
  const auto bytes_of = [this](int rank) {
    return on_gpu(setup_.spec) ? whole_gpu_bytes(rank) : ranks_[static_cast<size_t>(rank)].total();
  };
  int largest = 0;
  for (int rank = 1; rank < static_cast<int>(ranks_.size()); ++rank)
    if (bytes_of(rank) > bytes_of(largest)) largest = rank;
  return largest;
}

OpFlops MemoryPlan::flops_of_stage(int stage, int tp) const {
  OpFlops sum;
  const layout::Range layers = stages_.layers(stage);
  for (int64_t layer = layers.begin; layer < layers.end; ++layer) {
    const OpFlops& flops = flops_per_sample(static_cast<int>(layer), tp);
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
  const layout::Coordinate at = coordinate(rank);
  const layout::Layout& layout = place_of(rank).layout;
  if (instruction.kind == InstructionKind::kReduceControl) {
    return comm::all_reduce_bytes_sent(mesh.size(), rank, sizeof(ControlWord) / sizeof(int64_t),
                                       DType::kInt64, ring_);
  }
  const int unit = instruction.unit;
  const int64_t all = layout.elements(unit);
  const int64_t own = layout.shard(unit, at).size();
  // A group's ring keeps the order of the world's; ring_ is empty for the order of ranks.
  std::vector<int> ring;
  const auto next_to = [&ring](int index, int size) {
    const auto self = std::find(ring.begin(), ring.end(), index);
    if (self == ring.end()) return (index + 1) % size;
    return self + 1 == ring.end() ? ring.front() : self[1];
  };
  layout::Coordinate next = at;
  switch (instruction.kind) {
    case InstructionKind::kReduce:
      return (all - own) * size_of(setup_.formats.sums);
    case InstructionKind::kAllReduce:
      return (own - layout.rounded_part(unit, at).size()) * size_of(setup_.formats.sums);
    case InstructionKind::kRound: {
      for (const int member : ring_) {
        const layout::Coordinate place = layout::coordinate_of(mesh, member);
        const bool is_copy = place.tp == at.tp || layout.unit(unit).summed_over_tensor;
        if (place.fsdp == at.fsdp && is_copy && layout.holds(unit, place))
          ring.push_back(layout.copies(unit, place).index);
      }
      const layout::Copies copies = layout.copies(unit, at);
      const int index = next_to(copies.index, copies.count);
      const int tensor = layout.unit(unit).summed_over_tensor ? mesh.tp : 1;
      next.pp = layout.unit(unit).stages[static_cast<size_t>(index / tensor / mesh.copies())];
      next.dp = index / tensor / mesh.cp % mesh.dp;
      next.cp = index / tensor % mesh.cp;
      if (tensor > 1) next.tp = index % tensor;
      return comm::all_gather_bytes_sent(copies.count, layout.rounded_part(unit, at).size(),
                                         layout.rounded_part(unit, next).size(), own,
                                         DType::kFloat32);
    }
    case InstructionKind::kGather:
      next.fsdp = 0;
      if (layout.shard(unit, next).size() == all)  // mode: DataParallel
        return (mesh.fsdp - 1) * own * size_of(layout.unit(unit).dtype);
      for (const int member : ring_) {
        const layout::Coordinate place = layout::coordinate_of(mesh, member);
        if (place == layout::Coordinate{at.pp, at.dp, place.fsdp, at.cp, at.tp})
          ring.push_back(place.fsdp);
      }
      next.fsdp = next_to(at.fsdp, mesh.fsdp);
      return comm::all_gather_bytes_sent(mesh.fsdp, own, layout.shard(unit, next).size(), all,
                                         layout.unit(unit).dtype);
    default:
      return 0;
  }
}

/// What tensor and context ranks exchange within layers.
void MemoryPlan::add_exchanges(int rank, const AddSent& add) const {
  const layout::Mesh& mesh = setup_.mesh;
  if (mesh.tp == 1 && mesh.cp == 1) return;
  const layout::Coordinate at = coordinate(rank);
  const int64_t length = setup_.spec.data.sequence_length;
  std::vector<int> ring;
  for (const int member : ring_) {
    layout::Coordinate place = coordinate(member);
    const int member_tp = std::exchange(place.tp, at.tp);
    if (place == at) ring.push_back(member_tp);
  }
  const auto exchange = [&](const TensorPayload& payload, int64_t sequences) {
    const bool context = payload.is_of_context();
    const int pieces = !context && mesh.ring ? 2 : 1;
    sent_by(payload, pieces * sequences, context ? length : length / mesh.cp / pieces,
            context ? mesh.cp : mesh.tp, context ? at.cp : at.tp, ring,
            [&](std::string_view operation, int64_t bytes) {
              add({operation, context ? "context" : "tensor", 1, bytes});
            });
  };
  for (const int64_t sequences : micro_batches_of(rank)) {
    for (int stage = at.pp; stage < stages_.size(); stage += stages_.ranks()) {
      const layout::Range layers = stages_.layers(stage);
      for (int64_t layer = layers.begin; layer < layers.end; ++layer) {
        for (const TensorPayload& payload : place_of(rank).meetings[static_cast<size_t>(layer)])
          exchange(payload, sequences);
      }
    }
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
  const layout::Coordinate at = coordinate(rank);
  const auto micro_batches = static_cast<int64_t>(micro_batches_of(rank).size());
  // Messages carry the residual stream.
  const int64_t slices = int64_t{setup_.mesh.cp} * (setup_.mesh.slices ? setup_.mesh.tp : 1);
  const int64_t elements =
      samples * setup_.spec.data.sequence_length / slices * setup_.spec.model.hidden;
  for (int stage = at.pp; stage < stages_.size(); stage += stages_.ranks()) {
    const OpFlops flops = flops_of_stage(stage, at.tp);
    cost.flops += samples * (flops.forward + flops.backward_input + flops.backward_weight);
    cost.recompute_flops += samples * flops.recompute;
    if (stages_.has_after(stage))
      add(cost, {"point_to_point", "activations", micro_batches,
                 elements * size_of(setup_.formats.residual)});
    if (stages_.has_before(stage))
      add(cost, {"point_to_point", "gradients", micro_batches,
                 elements * size_of(setup_.formats.gradient)});
  }
  add_exchanges(rank, [&](const SentBytes& sent) { add(cost, sent); });
  const auto copies_of = [this, rank](int unit) {
    const layout::Unit& of = place_of(rank).layout.unit(unit);
    if (of.summed_over_tensor) return "sliced";
    return of.stages.size() > 1 ? "tied" : "replica";
  };
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
        sent("reduce_scatter", copies_of(instruction.unit));
        break;
      case InstructionKind::kRound:
        sent("all_gather", copies_of(instruction.unit));
        break;
      default:
        break;
    }
  }
  return cost;
}

}  // namespace trainyard::engine

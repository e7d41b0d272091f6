#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string_view>
#include <tuple>
#include <vector>

#include "common/api/engine_spec.h"
#include "common/base/error.h"
#include "common/layout/layout.h"
#include "common/layout/stage_map.h"
#include "worker/data/batch_partition.h"
#include "worker/job/tensor_payload.h"
#include "worker/memory/step_plan.h"
#include "worker/model/model.h"

/// What a job costs, before it runs: bytes, FLOPs and messages of every rank, from its manifest and
/// the number of ranks alone. Allocates no model.
namespace trainyard::engine {

/// What a rank's memory holds.
enum class MemoryPurpose : uint8_t {
  kWeights,       ///< what ops read
  kMasters,       ///< fp32 weights of the own part, where ops read bf16
  kMoments,       ///< AdamW's two moments of the own part
  kGradientSums,  ///< exact int64 sums
  kUnitBuffers,   ///< weights and sums of whole units while they are needed (stages 2 and 3)
  kActivations,   ///< the arena of a step
  kKernelScratch,
  kBatches,       ///< tokens of a step, and of what is read ahead of it
  kSnapshot,      ///< the copy of the own part that a checkpoint is written from
  kStates,        ///< states in memory, which the agent holds, beyond that copy
  kCommunicator,  ///< shared memory of the groups, divided by their members
  kProcess,       ///< program, heap and stacks: kProcessBytes
};
inline constexpr size_t kMemoryPurposes = 12;

/// "weights", "master weights" ...: for tables.
std::string_view name_of(MemoryPurpose purpose);

/// Whether it is in the memory of the rank's device: what Engine::create allocates.
constexpr bool is_on_device(MemoryPurpose purpose) {
  return purpose <= MemoryPurpose::kKernelScratch;
}

/// Memory of a rank's process that belongs to no other purpose: heap, stacks and the 16 MiB in
/// which pieces of the state pass through host memory (docs/concepts/memory-plan.md).
inline constexpr int64_t kProcessBytes = int64_t{24} << 20;

/// What a plan is made from.
struct MemoryPlanSetup {
  api::EngineSpec spec;  ///< complete, see resolve_spec
  layout::Mesh mesh;
  kernels::DeviceFormats formats;    ///< of each rank's device, for the spec's type of compute
  int64_t unit_bytes = 0;            ///< as in EngineSetup
  int64_t kernel_scratch_bytes = 0;  ///< of each rank's processor
  bool writes_checkpoints = true;
  bool keeps_states = false;     ///< in memory, see checkpoint::MemorySlots
  int ranks_with_copies = 0;     ///< of a node, of whose states the next node keeps copies; 0: none
  bool shares_memory = true;     ///< all ranks on one host, and not over TCP
  int64_t trace_ring_bytes = 0;  ///< of each track of a rank that keeps its spans; 0: none does
  /// Buffers of units count as if they lay without a gap: a lower bound, which is planned faster.
  bool is_bound = false;
};

/// One rank's bytes by purpose.
struct RankMemory {
  std::array<int64_t, kMemoryPurposes> bytes{};

  int64_t of(MemoryPurpose purpose) const { return bytes[static_cast<size_t>(purpose)]; }
  int64_t& of(MemoryPurpose purpose) { return bytes[static_cast<size_t>(purpose)]; }
  auto operator<=>(const RankMemory&) const = default;
  int64_t total() const;
  /// What Engine::create allocates.
  int64_t engine() const;
};

/// What a rank sends in a step by one operation in one of its groups.
struct SentBytes {
  std::string_view operation;  ///< as in contract::kCollectiveNames
  /// "world", "shard", "replica", "tied", "sliced", "tensor", "context", "activations",
  /// "gradients".
  std::string_view group;
  int64_t times = 0;  ///< that the operation runs
  int64_t bytes = 0;  ///< payload, of all times together
  auto operator<=>(const SentBytes&) const = default;
};

/// One rank's work in one step.
struct StepCost {
  int64_t flops = 0;            ///< of products and attention, what is computed again left out
  int64_t recompute_flops = 0;  ///< of what is computed again
  int64_t bytes_sent = 0;       ///< payload
  std::vector<SentBytes> sent;  ///< of which bytes_sent is the sum; operations that run
  auto operator<=>(const StepCost&) const = default;
};

/// The plan of one job at one number of ranks. Pure.
class MemoryPlan {
 public:
  /// Errors: kInvalidConfig (sizes that no model has, a batch that the data ranks cannot share);
  /// those of Layout::make.
  static Result<MemoryPlan> make(const MemoryPlanSetup& setup);

  const MemoryPlanSetup& setup() const { return setup_; }
  int64_t parameters() const { return parameters_; }
  /// FLOPs of the model's forward and backward passes for one sequence. Each product counts once,
  /// however many ranks compute it and however often.
  int64_t model_flops() const { return model_flops_; }
  const layout::StageMap& stages() const { return stages_; }
  const std::vector<RankMemory>& ranks() const { return ranks_; }
  /// What a rank takes of its machine's memory, and of its GPU's: 0 without one.
  int64_t host_bytes(int rank) const;
  int64_t gpu_bytes(int rank) const;
  /// Of host_bytes(), what the process alone occupies: all but shared memory.
  int64_t own_bytes(int rank) const;
  /// Of its machine's memory, what the driver of its GPU keeps in place for copies.
  int64_t pinned_bytes(int rank) const;
  /// Of its GPU's memory, beside gpu_bytes(): the driver's, and what NCCL is taken to hold, where
  /// the ranks meet by it.
  int64_t driver_bytes(int rank) const;
  int64_t whole_gpu_bytes(int rank) const { return gpu_bytes(rank) + driver_bytes(rank); }
  int64_t nccl_bytes(int rank) const;
  /// The lowest of the ranks with the most bytes, on GPUs with the most on its GPU.
  int largest_rank() const;
  const RankMemory& largest() const { return ranks_[static_cast<size_t>(largest_rank())]; }
  /// Cost: in proportion to units times ranks.
  StepCost step_of(int rank) const;
  /// What a rank runs in a step.
  const StepProgram& program_of(int rank) const { return shares_.at(kind_of(rank)).program; }
  /// Lowering of that program.
  Lowering lowering_of(int rank) const;
  /// Sequences in each of the rank's micro-batches.
  std::vector<int64_t> micro_batches_of(int rank) const;
  /// Micro-batches of the rank that has most.
  int64_t rounds() const { return partition_.micro_batches_max(); }
  /// FLOPs of a layer's passes for one sequence, on a rank at a place of the tp axis.
  const OpFlops& flops_per_sample(int layer, int tp = 0) const {
    return places_[static_cast<size_t>(tp)].flops_per_sample[static_cast<size_t>(layer)];
  }
  /// And of the layers of a stage together.
  OpFlops flops_of_stage(int stage, int tp = 0) const;

 private:
  /// What ranks at one place of the tp axis have in common.
  struct Place {
    layout::Layout layout;
    std::vector<OpFlops> flops_per_sample;             ///< by layer
    std::vector<std::vector<TensorPayload>> meetings;  ///< by layer, those of a micro-batch
  };
  /// What those of them have in common that have a stage and equally many samples.
  struct Share {
    int64_t buffer_bytes = 0;
    int64_t arena_bytes = 0;
    StepProgram program;
  };
  explicit MemoryPlan(const MemoryPlanSetup& setup) : setup_(setup) {}
  int64_t data_rank(int rank) const;
  int64_t samples_of(int rank) const;
  layout::Coordinate coordinate(int rank) const { return layout::coordinate_of(setup_.mesh, rank); }
  const Place& place_of(int rank) const {
    return places_[static_cast<size_t>(coordinate(rank).tp)];
  }
  std::tuple<int, int, int64_t> kind_of(int rank) const;
  Share make_share(const Model& model, int rank) const;
  void plan_stage(int pp, int tp, int params);
  int64_t bytes_sent_by(const Instruction& instruction, int rank) const;
  using AddSent = std::function<void(const SentBytes& sent)>;
  void add_exchanges(int rank, const AddSent& add) const;
  std::array<int, 6> state_groups(const layout::Coordinate& at) const;
  int channels(const layout::Coordinate& at) const;
  int64_t tracks(const layout::Coordinate& at) const;
  int64_t segments(const layout::Coordinate& at) const;
  int64_t nccl_bytes_of(const layout::Coordinate& at) const;
  void plan_rank(int rank);
  void plan_copies();

  MemoryPlanSetup setup_;
  data::BatchPartition partition_;
  int64_t kernel_scratch_bytes_ = 0;
  int64_t parameters_ = 0;
  int64_t model_flops_ = 0;
  layout::StageMap stages_;
  std::vector<int> recomputed_;                            ///< layers
  std::vector<Place> places_;                              ///< by tp coordinate
  std::map<std::tuple<int, int, int64_t>, Share> shares_;  ///< by kind_of()
  std::vector<int> ring_;
  std::vector<RankMemory> ranks_;
};

}  // namespace trainyard::engine

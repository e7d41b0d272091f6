#pragma once

#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "common/hash/hash.h"
#include "worker/checkpoint/lineage.h"
#include "worker/checkpoint/memory_slots.h"
#include "worker/checkpoint/state_store.h"
#include "worker/checkpoint/types.h"
#include "worker/engine/engine.h"
#include "worker/hf/run_facts.h"
#include "worker/job/early_stop.h"
#include "worker/state/gather.h"

namespace trainyard::engine {

/// The engine's state as named global tensors and scalars: what a checkpoint holds, in both
/// directions. Copies, so that training goes on while a snapshot is written.
class EngineState {
 public:
  /// `engine` is not owned. Snapshots have the states that this rank owns. `data_identity`
  /// (data::TokenSet::identity, hexadecimal) goes into each snapshot; a checkpoint of other data is
  /// refused. Empty: not known, not checked. `facts` go into each snapshot as well, with the
  /// engine's own epsilon.
  explicit EngineState(Engine& engine, std::string data_identity = "", hf::RunFacts facts = {});

  /// From now on the states that this rank owns are kept in the memory file behind `fd` as well
  /// (MemorySlots), and snapshots point into it. `ward`: of the rank whose copies are kept there as
  /// well. Once, before the first snapshot. Errors: those of MemorySlots::map; then nothing has
  /// changed.
  Status keep_in_memory(int fd, const std::string& job_uid,
                        const std::optional<checkpoint::SlotShape>& ward = {});
  /// What those states are like.
  checkpoint::SlotShape memory_shape(const std::string& job_uid) const;
  /// Null unless keeps_in_memory().
  checkpoint::MemorySlots* memory() const { return memory_.get(); }
  bool keeps_in_memory() const { return memory_ != nullptr; }
  /// What ranks of earlier generations have left there; empty where none is kept.
  std::vector<checkpoint::MemoryOffer> offers() const;
  /// restore() from one of offers(). Errors: besides, kInvalidData for one that is damaged.
  Status recall(const checkpoint::CheckpointId& id);
  /// The generation that states in memory are of from now on.
  void set_generation(checkpoint::LineageRecord record) { record_ = std::move(record); }
  /// Copies the states into memory, unless those of step() are there, and makes them what a rank of
  /// a later generation finds. Errors: those of MemorySlots::begin and complete.
  Status remember();

  /// Claims the memory of snapshots beside training, so that the first one does not wait for the
  /// kernel to find it, and a machine that has too little says so now. Only the first call counts.
  void claim_buffer();

  /// Steps up to the engine's newest one that changed no state: SkippedSteps::unchanged(). 0 unless
  /// it is told.
  void set_unchanged(int64_t steps) { unchanged_ = steps; }
  /// The step whose state this is: the newest one that was done.
  int64_t step() const { return engine_.steps_done() - unchanged_; }

  /// Copies this rank's part of parameters and moments into the snapshot buffer (allocated here
  /// unless it has been claimed, reused after), or into memory (remember()), and describes it as
  /// that of step(); the snapshot owns what it points to as well. Errors: kUnavailable while the
  /// snapshot before is still held (a disk hangs over it), or when there is no memory for the first
  /// one.
  Result<checkpoint::Snapshot> snapshot();

  /// Overwrites parameters, moments, optimizer step and data cursor. Once `stop_asked` says so it
  /// reads no further tensor: the step is the checkpoint's then, and nothing may be done with the
  /// rest. Errors: kInvalidConfig when the checkpoint is of another model, seed, numerics, batch,
  /// data or imported facts (names what differs); kInvalidData when it is damaged.
  Status restore(checkpoint::StateStore& stored, const StopAsked& stop_asked = {});
  /// restore() from another run's checkpoint, as spec.startFrom says; of Weights the parameters
  /// alone. Errors: those of restore().
  Status start_from(checkpoint::StateStore& stored, const StopAsked& stop_asked = {});
  /// The same as restore() without asking whether this run may go on with it: for a model that is
  /// only looked at. Errors: kInvalidData.
  Status load(checkpoint::StateStore& stored, const StopAsked& stop_asked = {});

  /// As before anything was restored: step 0, no moments. The parameters are still to be made.
  Status start_over();

  Engine& engine() const { return engine_; }

  /// Loss of step(), kept in checkpoints: a run that goes on from its last step has no
  /// other. NaN before the first step and where it is not known. No part of the hash.
  double loss() const { return loss_; }
  void set_loss(double loss) { loss_ = loss; }

  /// What evaluations have come to, kept in checkpoints as well. No part of the hash.
  EarlyStop& early_stop() { return early_stop_; }
  const EarlyStop& early_stop() const { return early_stop_; }

  /// Hash of the live state, see docs/concepts/state-hash.md, the same on every rank. Collective
  /// over the world: rank 0 hashes what the owners send, and tells the others. Errors: those of the
  /// communicator.
  Result<Hash128> hash();

  /// One tensor of the live state to rank 0 of the world, see engine::gather_pieces().
  Status gather_pieces(int param, checkpoint::TensorKind kind, const UsePiece& use);

 private:
  struct Part {
    int param;
    checkpoint::TensorKind kind;
    layout::Rectangle where;
    int64_t first = 0;   ///< its first element among those owned of the parameter
    int64_t offset = 0;  ///< in the buffer, bytes
  };
  enum class Extent { kStored, kOwned };
  std::vector<Part> parts(Extent extent) const;
  std::vector<checkpoint::StatePart> described(const std::vector<Part>& parts) const;
  std::string owner_in_memory(const std::string& job_uid) const;
  checkpoint::Manifest description() const;
  Status check_facts(const checkpoint::StateStore& stored) const;
  Status load_parameters(checkpoint::StateStore& stored, const StopAsked& stop_asked);
  Status allocate_buffer();
  Status prepare_buffer();
  Status copy_parts(const std::vector<Part>& parts, std::span<std::byte> buffer);

  Engine& engine_;
  std::string data_identity_;
  hf::RunFacts facts_;
  double loss_ = std::numeric_limits<double>::quiet_NaN();
  EarlyStop early_stop_;
  int64_t unchanged_ = 0;
  std::vector<Part> parts_;  ///< of a snapshot, with offsets into the buffer or a slot
  std::unique_ptr<checkpoint::MemorySlots> memory_;
  std::vector<Part> owned_parts_;  ///< of a slot
  checkpoint::LineageRecord record_;
  int64_t remembered_step_ = -1;
  std::vector<float> piece_;  ///< of gather_pieces()
  std::shared_ptr<MemoryBlock> buffer_;
  std::jthread claiming_;  ///< works on buffer_
};

}  // namespace trainyard::engine

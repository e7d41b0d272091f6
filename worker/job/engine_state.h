#pragma once

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>

#include "common/hash/hash.h"
#include "worker/checkpoint/reader.h"
#include "worker/checkpoint/types.h"
#include "worker/engine/engine.h"
#include "worker/hf/run_facts.h"
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

  /// Claims the memory of snapshots beside training, so that the first one does not wait for the
  /// kernel to find it, and a machine that has too little says so now. Only the first call counts.
  void claim_buffer();

  /// Steps skipped one after another up to the engine's newest one: they changed no state. 0 unless
  /// it is told.
  void set_skipped_in_a_row(int64_t steps) { skipped_in_a_row_ = steps; }
  /// The step whose state this is: the newest one that was done.
  int64_t step() const { return engine_.steps_done() - skipped_in_a_row_; }

  /// Copies this rank's part of parameters and moments into the snapshot buffer (allocated here
  /// unless it has been claimed, reused after) and describes it as that of step(); the snapshot
  /// owns the buffer as well. Errors: kUnavailable while the snapshot before is still held (a disk
  /// hangs over it), or when there is no memory for the first one.
  Result<checkpoint::Snapshot> snapshot();

  /// Overwrites parameters, moments, optimizer step and data cursor. Once `stop_asked` says so it
  /// reads no further tensor: the step is the checkpoint's then, and nothing may be done with the
  /// rest. Errors: kInvalidConfig when the checkpoint is of another model, seed, numerics, batch,
  /// data or imported facts (names what differs); kInvalidData when it is damaged.
  Status restore(checkpoint::CheckpointReader& reader, const StopAsked& stop_asked = {});
  /// restore() from another run's checkpoint, as spec.startFrom says; of Weights the parameters
  /// alone. Errors: those of restore().
  Status start_from(checkpoint::CheckpointReader& reader, const StopAsked& stop_asked = {});
  /// The same as restore() without asking whether this run may go on with it: for a model that is
  /// only looked at. Errors: kInvalidData.
  Status load(checkpoint::CheckpointReader& reader, const StopAsked& stop_asked = {});

  Engine& engine() const { return engine_; }

  /// Loss of step(), kept in checkpoints: a run that goes on from its last step has no
  /// other. NaN before the first step and where it is not known. No part of the hash.
  double loss() const { return loss_; }
  void set_loss(double loss) { loss_ = loss; }

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
    int64_t first = 0;  ///< its first element among those owned of the parameter
  };
  Status check_facts(const checkpoint::CheckpointReader& reader) const;
  Status load_parameters(checkpoint::CheckpointReader& reader, const StopAsked& stop_asked);
  Status allocate_buffer();
  Status prepare_buffer();
  Status copy_parts(std::vector<checkpoint::TensorSlice>& slices);

  Engine& engine_;
  std::string data_identity_;
  hf::RunFacts facts_;
  double loss_ = std::numeric_limits<double>::quiet_NaN();
  int64_t skipped_in_a_row_ = 0;
  std::vector<Part> parts_;
  std::vector<float> piece_;  ///< of gather_pieces()
  std::shared_ptr<MemoryBlock> buffer_;
  std::jthread claiming_;  ///< works on buffer_
};

}  // namespace trainyard::engine

#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/error.h"
#include "worker/checkpoint/communicator_group.h"
#include "worker/checkpoint/writer.h"
#include "worker/job/engine_state.h"
#include "worker/rank/state_replicas.h"
#include "worker/rank/train_loop.h"

namespace trainyard::engine {

/// When checkpoints are taken, and what becomes of them: restores at the beginning of a generation,
/// snapshots at step boundaries, commits beside training over a group of its own.
class CheckpointSchedule {
 public:
  /// Begins the generation: restores `state` from the parent's newest good checkpoint if there is
  /// one. `context` and `state` must outlive this. Collective. Errors: as start_generation.
  static Result<std::unique_ptr<CheckpointSchedule>> begin(const TrainContext& context,
                                                           EngineState& state);
  ~CheckpointSchedule();

  /// Whether begin() found a state to go on from; otherwise the weights are still to be made.
  bool restored() const { return restored_; }
  /// Whether that state is in no checkpoint.
  bool is_unsaved() const { return restored_ && committed_step_ < newest_done_; }

  /// Call after every step; copies the state into memory when that is due, and starts a checkpoint
  /// when one is due by policy or `last` is set. The same decision on every rank. One that is due
  /// after a skipped step waits for the next step that is done; the last one holds the state of the
  /// newest step that was done, under that step's name. A checkpoint that fails is logged and
  /// counted in the progress page, and training goes on. Errors: only those that end the generation
  /// (the group is gone).
  Status after_step(bool last);

  /// Starts a checkpoint of the newest step done now. Collective. Errors: as after_step.
  Status save();

  /// Waits for the checkpoint in progress; true when the newest step done is committed. With
  /// `keep_trying` one that was abandoned is written again and again, at pauses of up to 10 s,
  /// until it is committed or a rank is asked to stop: the state it holds is nowhere else.
  /// Collective.
  Result<bool> finish(bool keep_trying);

  /// Waits for the clean-up in progress, while its disk moves. The last call. Returns what people
  /// should know of all clean-ups, each line once.
  std::vector<std::string> close();

  /// For a model that has diverged: which checkpoint to go on from, for people. It is the newest
  /// one after which a step was done.
  std::string advice() const;

  /// The checkpoint of this step in the run's own history. Errors: kNotFound; those of
  /// checkpoint::open_own.
  Result<std::unique_ptr<checkpoint::CheckpointReader>> open_step(int64_t step) const;

 private:
  /// The run's own checkpoints, newest first, and the records of their directory.
  struct History {
    checkpoint::LineageRecords records;
    std::vector<checkpoint::CheckpointId> ids;
  };
  CheckpointSchedule(const TrainContext& context, EngineState& state)
      : context_(context), state_(state) {}
  Status use_memory();
  Result<std::optional<checkpoint::SlotShape>> shape_of_ward();
  checkpoint::RankOffers offers() const;
  Status recall(const checkpoint::CheckpointId& id);
  void copy_restored(const checkpoint::StartedGeneration& started);
  Status remember_when_due();
  Result<bool> may_remember();
  Status end_copies();
  Result<int64_t> affordable_interval(Duration cost);
  Result<int64_t> agree(int64_t own, comm::ReduceOp op);
  Status settle(const checkpoint::CheckpointOutcome& outcome);
  void tell_notes();
  void count_commit(const checkpoint::CheckpointOutcome& outcome);
  void count_failure(const checkpoint::CheckpointOutcome& outcome);
  Status drain();
  Result<bool> asked_to_stop_within(Duration pause);
  Status start();
  Result<History> history() const;
  const TrainContext& context_;
  EngineState& state_;
  std::shared_ptr<checkpoint::PosixFileSystem> files_ =
      std::make_shared<checkpoint::PosixFileSystem>();
  contract::CheckpointFigures figures_;
  std::unique_ptr<checkpoint::CommunicatorCommitGroup> group_;
  std::unique_ptr<checkpoint::CheckpointWriter> writer_;
  std::shared_ptr<checkpoint::Notes> notes_ = std::make_shared<checkpoint::Notes>();
  std::vector<std::string> told_;  ///< of notes_, in order
  /// The newest step from whose state a later one was done. Read by the writer's thread.
  std::shared_ptr<std::atomic<int64_t>> proven_step_ = std::make_shared<std::atomic<int64_t>>(-1);
  bool due_ = false;  ///< a checkpoint waits for a step that is done
  bool restored_ = false;
  int64_t newest_done_ = -1;  ///< step, of this generation or restored
  int64_t begun_step_ = -1;
  int64_t committed_step_ = -1;
  /// Steps between states in memory; 0: none; nullopt: as many as their cost wants.
  std::optional<int64_t> memory_every_ = 0;
  int64_t next_memory_step_ = 0;  ///< where memory_every_ is not given
  bool memory_due_ = false;       ///< a state waits for the copies of the one before
  /// Null: no copies are made with other nodes. Uses the memory of state_.
  std::unique_ptr<StateReplicas> replicas_;
  std::optional<MonoTime> step_began_;    ///< the one under way
  Duration step_time_ = Duration::max();  ///< of the quickest step since the last state in memory
  bool told_of_memory_ = false;           ///< that it could not be written
  bool keeps_trying_ = false;             ///< what failed is written again
};

}  // namespace trainyard::engine

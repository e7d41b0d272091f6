#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/base/error.h"
#include "worker/checkpoint/commit_group.h"
#include "worker/checkpoint/file_system.h"
#include "worker/checkpoint/generation.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/notes.h"
#include "worker/checkpoint/retention.h"
#include "worker/checkpoint/types.h"
#include "worker/trace/span.h"

namespace trainyard::checkpoint {

struct WriterOptions {
  std::filesystem::path root;
  RetentionPolicy retention;
  int64_t chunk_bytes = kDefaultChunkBytes;
  /// Asked on the writer's thread before each clean-up: the newest step from whose state a later
  /// step is known to have been done. One checkpoint of it or of an earlier step always stays.
  /// Empty: every checkpoint is as good as the next.
  std::function<int64_t()> proven_step;
  /// Told what went wrong without harm (clean-up, `latest`), also after an outcome.
  std::shared_ptr<Notes> notes = std::make_shared<Notes>();
  /// Told of each write and commit, on Track::kCheckpoint. Not owned; may be null.
  trace::SpanSink* spans = nullptr;
  /// A disk none of whose calls ends for this long is held to hang, and the checkpoint abandoned.
  /// Each call moves at most a few MiB, so that slowness alone does not look like that.
  std::chrono::milliseconds hang_limit{60'000};
  /// A save may take this long in all, however slowly it moves.
  std::chrono::milliseconds save_limit{30 * 60'000};
  /// How often ranks that wait for another's disk hear that it moves: far below the group's
  /// deadline.
  std::chrono::milliseconds round{1'000};
};

/// Whether an error is none of a checkpoint alone: the ranks have lost each other, or one has a
/// bug.
bool ends_generation(ErrorCode code);

/// How one checkpoint ended.
struct CheckpointOutcome {
  int64_t step = 0;
  /// Success: committed and durable. An error: abandoned on every rank (the message names the rank
  /// and the cause), training may go on and the checkpoint before stays, if they agreed on it.
  Status status;
  /// False where the ranks could not agree, whatever the error's kind: the group is gone, and no
  /// later checkpoint can succeed.
  bool agreed = false;
  int64_t bytes = 0;       ///< written by this rank
  double seconds = 0;      ///< from begin() to the end of the commit
  double write_s = 0;      ///< of it, this rank's shard: hashing, writing, syncing
  double write_cpu_s = 0;  ///< processor time of that
  std::string directory;   ///< name within the root

  /// Whether training may not go on: the ranks no longer agree, or have lost each other.
  bool ends_generation() const;
};

/// Writes checkpoints of one rank beside training: the step pays for the snapshot only. A thread of
/// its own agrees with the other ranks, another one writes the shard, and on rank 0 the manifest,
/// moves `latest` and removes what need not be kept. docs/formats/checkpoint.md, "Commit".
///
/// A disk that fails, is full or hangs costs the checkpoint, on all ranks, and nothing else.
class CheckpointWriter {
 public:
  /// `group` must outlive the writer; it is used by the writer's thread only and must be apart from
  /// the communicators of the step. `files` is held until the last call of a disk that hangs has
  /// ended. Call begin() and decline() in the same order on all ranks.
  CheckpointWriter(std::shared_ptr<FileSystem> files, CommitGroup& group, WriterOptions options,
                   StartedGeneration started);
  /// Waits for a checkpoint in progress; the limits of the options and the group's deadline bound
  /// that. A thread in a call that hangs is left behind.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// Starts writing and returns at once; the tensors' memory must stay as it is until poll() or
  /// wait() has returned the outcome, and longer while a disk hangs: see Snapshot::owner. Errors:
  /// kUnavailable while one is being written or its outcome has not been fetched; kAlreadyExists
  /// when `step` is neither after the last one begun (or resumed from) nor that one, abandoned;
  /// kInternal for a slice that contradicts itself.
  Status begin(Snapshot snapshot);
  /// Instead of begin(), on a rank that has nothing to give: the checkpoint is abandoned on all
  /// ranks for this reason. Errors: as begin().
  Status decline(int64_t step, Error reason);

  /// The outcome when the checkpoint has ended, once; nullopt while it runs or when there is none.
  std::optional<CheckpointOutcome> poll();
  /// Waits for the outcome. nullopt when none is in progress or after `timeout`.
  std::optional<CheckpointOutcome> wait(std::chrono::milliseconds timeout);
  /// Whether one is being written.
  bool busy() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trainyard::checkpoint

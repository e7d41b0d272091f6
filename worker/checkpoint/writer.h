#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/error.h"
#include "worker/checkpoint/commit_group.h"
#include "worker/checkpoint/file_system.h"
#include "worker/checkpoint/generation.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/retention.h"
#include "worker/checkpoint/types.h"
#include "worker/trace/span.h"

namespace trainyard::checkpoint {

struct WriterOptions {
  std::filesystem::path root;
  RetentionPolicy retention;
  int64_t chunk_bytes = kDefaultChunkBytes;
  /// Told of each write and commit, on Track::kCheckpoint. Not owned; may be null.
  trace::SpanSink* spans = nullptr;
};

/// How one checkpoint ended.
struct CheckpointOutcome {
  int64_t step = 0;
  /// Success: committed and durable. An error: abandoned on every rank (the message names the rank
  /// and the cause), training may go on and the checkpoint before stays; kPeerLost, kDeadline and
  /// kAborted mean that the group is gone.
  Status status;
  int64_t bytes = 0;               ///< written by this rank
  double seconds = 0;              ///< from begin() to the end of the commit
  std::string directory;           ///< name within the root
  std::vector<std::string> notes;  ///< what went wrong without harm (clean-up, `latest`)
};

/// Writes checkpoints of one rank beside training: the step pays for the snapshot only. A thread of
/// its own writes the shard, agrees with the other ranks, and on rank 0 writes the manifest, moves
/// `latest` and removes what need not be kept. docs/formats/checkpoint.md, "Commit".
class CheckpointWriter {
 public:
  /// `files` and `group` must outlive the writer. `group` is used by the writer's thread only and
  /// must be apart from the communicators of the step. Calls begin() in the same order on all
  /// ranks.
  CheckpointWriter(FileSystem& files, CommitGroup& group, WriterOptions options,
                   StartedGeneration started);
  /// Waits for a checkpoint in progress; the group's deadline bounds that.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// Starts writing and returns at once; the tensors' memory must stay as it is until poll() or
  /// wait() has returned the outcome. Errors: kUnavailable while one is being written or its
  /// outcome has not been fetched; kAlreadyExists when `step` is not after the last one begun (or
  /// resumed from); kInternal for a slice that contradicts itself.
  Status begin(Snapshot snapshot);

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

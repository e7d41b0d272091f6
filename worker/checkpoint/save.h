#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/error.h"
#include "worker/checkpoint/commit_group.h"
#include "worker/checkpoint/disk_thread.h"
#include "worker/checkpoint/generation.h"
#include "worker/checkpoint/shard.h"
#include "worker/checkpoint/writer.h"

namespace trainyard::checkpoint {

/// What all saves of one rank share. Nothing is owned.
struct SaveContext {
  DiskThread& disk;
  CommitGroup& group;
  const WriterOptions& options;
  const StartedGeneration& started;
};

/// One checkpoint as one rank lives through it: docs/formats/checkpoint.md, "Commit". All work on
/// files is done by the disk thread, so that this one can always answer its peers.
class Save {
 public:
  /// `previous`: the checkpoint committed before.
  Save(const SaveContext& context, const CheckpointId& id, std::optional<ManifestRef> previous)
      : context_(context), id_(id), previous_(std::move(previous)) {}

  /// Collective. Writes the snapshot, or takes part with an error instead of one.
  CheckpointOutcome run(Result<Snapshot> snapshot);

  /// After run(): the newest committed checkpoint. On rank 0; the others do not know its checksum.
  const std::optional<ManifestRef>& previous() const { return previous_; }

 private:
  struct Written;
  struct Committed;
  struct Verdict;
  Status agree(Result<Snapshot> snapshot, CheckpointOutcome& outcome);
  Result<bool> await_all(bool own);
  Result<std::string> write_own_shard(Result<Snapshot> snapshot, CheckpointOutcome& outcome);
  Result<Verdict> commit(const Snapshot& described, const std::vector<std::string>& reports);
  Result<Manifest> make_manifest(const Snapshot& described,
                                 const std::vector<std::string>& reports) const;
  void clean_up(const Verdict& verdict);
  Error hanging(const char* what) const;

  SaveContext context_;
  CheckpointId id_;
  std::optional<ManifestRef> previous_;
  int64_t best_step_ = -1;                       // of what is saved
  std::chrono::steady_clock::time_point limit_;  // of all waits together
};

}  // namespace trainyard::checkpoint

#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

/// What a rank says of its checkpoints: counts since its process began, and the newest of each
/// kind. Part of the progress page (common/worker_contract.h).
namespace trainyard::contract {

/// Plain values of one moment. Durations in seconds; what has not happened yet is 0.
struct CheckpointFigures {
  int64_t commits = 0;
  int64_t failures = 0;      ///< abandoned on all ranks; training went on
  int64_t failed_step = -1;  ///< of the newest failure; -1: none
  int64_t bytes = 0;         ///< of the newest commit, written by this rank
  int64_t bytes_total = 0;   ///< of all commits
  double committed_unix_s = 0;
  double commit_s = 0;       ///< newest: from the snapshot to the commit
  double write_s = 0;        ///< newest: hashing, writing and syncing this rank's shard
  double write_cpu_s = 0;    ///< newest: processor time of that
  double stall_s = 0;        ///< newest begun: what its step paid (wait for the one before, copy)
  double stall_total_s = 0;  ///< of all
  std::string failure;       ///< why the newest failure was; cut to kMaxFailureBytes

  bool operator==(const CheckpointFigures&) const = default;
};

/// The same in shared memory: one writer, many readers.
struct CheckpointPage {
  static constexpr size_t kMaxFailureBytes = 512;
  std::atomic<uint64_t> sequence;  ///< odd while the rest changes, even after
  std::atomic<int64_t> commits;
  std::atomic<int64_t> failures;
  std::atomic<int64_t> failed_step;
  std::atomic<int64_t> bytes;
  std::atomic<int64_t> bytes_total;
  std::atomic<double> committed_unix_s;
  std::atomic<double> commit_s;
  std::atomic<double> write_s;
  std::atomic<double> write_cpu_s;
  std::atomic<double> stall_s;
  std::atomic<double> stall_total_s;
  /// The failure's text, padded with zeros; as words, so that a reader meets no torn access.
  std::array<std::atomic<uint64_t>, kMaxFailureBytes / sizeof(uint64_t)> failure;
};

/// Writes `figures`. One thread.
void store(const CheckpointFigures& figures, CheckpointPage& page);

/// Brings `figures` up to date with one update of the writer. False, and unchanged, while the
/// writer is in the middle of one (it may have been preempted there). The text is what a foreign
/// process wrote: treat it as such.
bool load(const CheckpointPage& page, CheckpointFigures& figures);

}  // namespace trainyard::contract

#pragma once

#include <chrono>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <optional>
#include <string>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/temporary_directory.h"
#include "tests/unit/worker/checkpoint/small_state.h"
#include "tests/unit/worker/checkpoint/thread_group.h"
#include "worker/checkpoint/generation.h"
#include "worker/checkpoint/writer.h"

namespace trainyard::checkpoint::testing {

/// A file system of the test's that a writer may share; it must outlive the writer's last call.
inline std::shared_ptr<FileSystem> borrowed(FileSystem& files) {
  return {std::shared_ptr<FileSystem>(), &files};
}

/// One generation's life: begin, restore, write a checkpoint at each of `steps`.
struct Training {
  int64_t generation = 1;
  std::optional<int64_t> parent;
  int ranks = 1;
  std::vector<int64_t> steps;
  RetentionPolicy retention;
};

/// One job's checkpoints and lives of its generations.
class JobDirectory {
 public:
  /// In a fresh directory of the machine, removed with this object.
  JobDirectory() : temporary_(std::in_place), root_(temporary_->path()) {}
  /// Anywhere, for file systems of the test's own.
  explicit JobDirectory(std::filesystem::path root, std::string uid = "job-uid-1")
      : root_(std::move(root)), uid_(std::move(uid)) {}

  const std::filesystem::path& root() const { return root_; }
  GenerationPlan plan(int64_t generation, std::optional<int64_t> parent) const {
    return {root_, uid_, generation, parent};
  }
  /// Step restored from by the newest train(); nullopt: from scratch.
  std::optional<int64_t> restored_step() const { return restored_; }
  const std::vector<std::string>& notes() const { return notes_; }
  /// What the writers of the newest train() have noted: clean-ups, `latest`.
  const std::vector<std::string>& writer_notes() const { return writer_notes_; }
  /// The highest step whose checkpoint has been reported as committed; -1: none.
  int64_t committed_step() const { return committed_; }

  /// Lives through `training` with a thread a rank. Empty, or the first thing that went wrong: an
  /// error, or a restored state that is not exactly the one of its step.
  std::string train(FileSystem& files, const Training& training) {
    std::mutex mutex;
    std::string trouble;
    const auto notes = std::make_shared<Notes>();
    const auto report = [&](const std::string& what) {
      const std::lock_guard lock(mutex);
      if (trouble.empty()) trouble = what;
    };
    run_ranks(training.ranks, [&](CommitGroup& group) {
      std::optional<int64_t> restored;
      const auto started = start_generation(files, plan(training.generation, training.parent),
                                            group, [&](CheckpointReader& reader) -> Status {
                                              const std::string wrong = difference(reader);
                                              if (!wrong.empty())
                                                return Error{ErrorCode::kInvalidData, wrong};
                                              restored = reader.manifest().step;
                                              return {};
                                            });
      if (!started) return report(started.error().message);
      if (restored.has_value() != started->resumed_from.has_value()) return report("resumed_from");
      if (group.rank() == 0) {
        restored_ = restored;
        notes_ = started->notes;
      }
      std::optional<CheckpointWriter> writer(
          std::in_place, borrowed(files), group,
          WriterOptions{
              .root = root_, .retention = training.retention, .chunk_bytes = 256, .notes = notes},
          *started);
      for (const int64_t step : training.steps) {
        const auto state = small_state(step);
        const Status begun = writer->begin(small_snapshot(state, step, group.rank(), group.size()));
        if (!begun) return report(begun.error().message);
        const auto outcome = writer->wait(std::chrono::seconds(60));
        if (!outcome) return report("no outcome");
        if (!outcome->status) report(outcome->status.error().message);
        if (outcome->status && group.rank() == 0) committed_ = std::max(committed_, step);
      }
      writer.reset();  // waits for its clean-up
    });
    writer_notes_ = notes->take();
    return trouble;
  }

 private:
  std::optional<trainyard::testing_support::TemporaryDirectory> temporary_;
  std::filesystem::path root_;
  std::string uid_ = "job-uid-1";
  int64_t committed_ = -1;
  std::optional<int64_t> restored_;
  std::vector<std::string> notes_;
  std::vector<std::string> writer_notes_;
};

/// Writes the first checkpoint of `job`, which has one rank.
inline void save_first(FileSystem& files, const JobDirectory& job, const Snapshot& snapshot) {
  run_ranks(1, [&](CommitGroup& group) {
    const auto started = start_generation(files, job.plan(1, std::nullopt), group,
                                          [](CheckpointReader&) -> Status { return {}; });
    ASSERT_TRUE(started) << started.error().message;
    CheckpointWriter writer(borrowed(files), group, {job.root(), {}, 256}, *started);
    ASSERT_TRUE(writer.begin(snapshot));
    const auto outcome = writer.wait(std::chrono::seconds(60));
    ASSERT_TRUE(outcome && outcome->status);
  });
}

/// The whole of a file; for small ones.
inline std::string slurp(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

/// Replaces a file's content in place (the same inode: hard links see it).
inline void spill(const std::filesystem::path& path, const std::string& content) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << content;
}

}  // namespace trainyard::checkpoint::testing

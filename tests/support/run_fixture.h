#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/child_process.h"
#include "tests/support/temporary_directory.h"

namespace trainyard::testing_support {

/// `trainyard run` as a user starts it, with real agents, on a small data set of its own. Ranks
/// train nothing (tests/support/fake_rank.cc) unless TRAINYARD_WORKER names others. What a test
/// leaves running is ended.
class RunFixture : public ::testing::Test {
 protected:
  using Environment = std::map<std::string, std::string>;
  using Json = nlohmann::json;

  RunFixture();
  ~RunFixture() override;

  const std::filesystem::path& folder() const { return folder_.path(); }
  std::filesystem::path run_dir() const { return folder() / "run"; }
  std::filesystem::path checkpoints() const { return run_dir() / "pvc/ckpt/tiny"; }
  /// TMPDIR of everything started: checked to be empty at the end.
  std::filesystem::path temporary() const { return folder() / "t"; }
  void write(const std::string& name, const std::string& text) const;

  /// The command line of start().
  std::vector<std::string> arguments(const std::string& manifest = "job.yaml") const;
  /// The environment of everything started: TMPDIR, the fake rank and the mark.
  Environment environment(Environment more = {}) const;

  std::unique_ptr<ChildProcess> start(Environment more = {}, std::vector<std::string> options = {},
                                      const std::string& manifest = "job.yaml");
  /// `trainyard` with these arguments, until it ends; its output in PREFIX"out" and PREFIX"err" of
  /// the folder.
  ChildEnd trainyard(const std::vector<std::string>& arguments,
                     const std::string& prefix = "") const;

  /// The objects of one type that the run has printed.
  std::vector<Json> printed(const std::string& type) const;
  Json summary() const;
  std::string output() const;
  std::string errors() const;
  /// status.json's status; empty when there is none.
  Json status() const;
  /// The newest step printed; -1 before the first. Up to a second old, see step_shown.
  int64_t step_printed() const;
  /// The step of live.json, which is renewed five times a second; -1 without one.
  int64_t step_shown() const;

  static bool wait_until(const std::function<bool()>& condition);
  /// The fake checkpoint has that step.
  bool checkpointed(int64_t step) const;
  /// Pids of the job's processes whose executable has that name.
  std::vector<pid_t> running(const std::string& name) const;
  std::vector<pid_t> running() const { return processes_with(mark_); }

  /// Waits for the run's end: with that code, and a ledger that conserves.
  void expect_end(ChildProcess& child, int exit_code);
  /// What the run has counted adds up (tests/support/ledger_check.h).
  void expect_ledger_conserves() const;
  void expect_nothing_left();

  static constexpr std::chrono::seconds kDeadline{90};
  /// One node of two ranks, 50 steps, a checkpoint every 10.
  static const char kManifest[];
  /// A line of its spec: ranks that a test makes stand still are not taken for hung before
  /// kDeadline, however slow the machine is.
  static const char kMayStandStill[];

 private:
  const TemporaryDirectory folder_;
  const std::string mark_;
};

/// Letters in no order.
std::string varied_text(size_t bytes);

/// The whole file; empty when it cannot be read.
std::string content_of(const std::filesystem::path& path);

}  // namespace trainyard::testing_support

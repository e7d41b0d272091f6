#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <sys/types.h>

#include "tests/support/operator_process.h"
#include "tests/support/pod_runner.h"
#include "tests/support/trainyard_command.h"

namespace trainyard::apiserver {

/// Jobs with an engine: real agents and ranks in place of pods' containers, which meet by the
/// control stream of the operator.
class StreamTest : public testing_support::JobTest {
 protected:
  void SetUp() override;
  void TearDown() override;

  /// Starts the operator program of that folder, or that of this build, with the worker image of
  /// that tag.
  void start_operator(const std::filesystem::path& programs, const std::string& tag = "1");
  void start_operator();
  /// From now on pods run the agent of that folder, as if their image had changed.
  void run_agents_of(const std::filesystem::path& programs);
  /// The same for the image of that tag alone.
  void run_agents_of(const std::filesystem::path& programs, const std::string& tag);

  /// Trains the data of the test; saves every 20 steps into the claim.
  Json engine_job(int nodes, int steps) const;
  /// Two shells in each of two pods, which do what `script` says.
  Json program_job(const std::string& script) const;

  /// Plays the machine until the condition holds.
  bool until(const std::function<bool()>& condition);
  /// Plays the machine for longer than the operator waits before it deletes a pod.
  void let_it_delete();

  /// The highest term that was led in, as the Secret of the control stream has it.
  int64_t remembered_term() const;
  /// In the claim, one of the first generation of tiny whose name is greater.
  bool has_checkpoint_after(const std::string& name) const;
  /// The process of a pod's one rank; -1: it runs none.
  pid_t rank_of(const std::string& pod) const;
  int64_t step() const;

  std::unique_ptr<testing_support::TrainyardCommand> trainyard_;
  std::unique_ptr<testing_support::OperatorProcess> operator_;
  std::unique_ptr<testing_support::PodRunner> machine_;

 private:
  std::string port_;
  int starts_ = 0;
  std::chrono::steady_clock::time_point renewed_at_;
};

}  // namespace trainyard::apiserver

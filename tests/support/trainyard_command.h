#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace trainyard::testing_support {

/// `trainyard` as a user runs it on this machine: the measure of what is trained in pods.
class TrainyardCommand {
 public:
  /// What it prints and what it trains goes into `folder`. `program`: of another build; empty: that
  /// of this one.
  explicit TrainyardCommand(std::filesystem::path folder, std::filesystem::path program = {});

  /// Its exit code; -1 where a signal ended it or it took too long. Its output goes into a file of
  /// that name.
  int run(const std::vector<std::string>& arguments, const std::string& output) const;
  /// Makes a small data set: `into`/train.
  void prepare_data(const std::filesystem::path& into) const;
  /// The state hash of the newest checkpoint in a job's directory; empty where there is none.
  std::string state_hash(const std::filesystem::path& checkpoints) const;
  /// The state hash at the end of the job, trained here and undisturbed. Of its manifest the pod
  /// template is left out.
  std::string state_hash_of_run(nlohmann::json job) const;

 private:
  const std::filesystem::path folder_;
  const std::filesystem::path program_;
};

}  // namespace trainyard::testing_support

#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/api/training_job.h"
#include "common/base/clock.h"
#include "common/base/error.h"
#include "control/cluster.h"
#include "control/local/job_store.h"

namespace trainyard::control::local {

/// A variable of a program's container.
struct ProgramVariable {
  std::string name;
  std::string value;
  bool refers = true;  ///< "$(NAME)" in the value is a reference

  bool operator==(const ProgramVariable&) const = default;
};

struct LocalClusterOptions {
  /// Holds everything of one job: lock, job.json, status.json, engine.json, checkpoint-policy.json,
  /// pods/<name>/{pod.json,log,exit.json}, checkpoints/ or pvc/<claim>/. Made when absent; made
  /// absolute.
  std::filesystem::path run_dir;
  /// The job wanted now (paths absolute). A spec that differs from the stored one replaces it under
  /// the next metadata.generation; the name must be the stored one.
  api::TrainingJob job;
  /// argv of a pod's supervisor; the first an absolute path. The same for every pod.
  std::vector<std::string> pod_command;
  /// The program that the supervisor starts, appended to its argv after "--"; empty: none. Words
  /// and values refer to variables by "$(NAME)" (references.h).
  std::vector<std::string> program;
  /// The program's own variables, in their order.
  std::vector<ProgramVariable> program_environment;
  /// Added to every pod's environment, over the process's own and under the reserved names.
  std::map<std::string, std::string> environment;
  /// Where pods start; empty: where this process is.
  std::filesystem::path working_directory;
  /// What becomes of a stored run that has failed.
  AfterFailure after_failure = AfterFailure::kStay;
  /// Required; outlives the cluster.
  const Clock* clock = nullptr;
};

/// This machine as a cluster of one job: pods are processes in sessions of their own. Their records
/// (name, UID, pid, start time, boot id) are on disk before they run, so that another process may
/// adopt or end them; status is a versioned file, replaced durably. Pods outlive this object.
/// Thread-safe; owns one thread, which waits on the pods' ends.
class LocalCluster final : public Cluster {
 public:
  /// Takes the run directory's lock, stores the job and adopts the pods that are recorded.
  /// Errors: kConflict when another process holds the lock; kInvalidConfig when the run directory
  /// cannot be one, or belongs to another job; kInvalidData for damaged records; kIo.
  static Result<std::unique_ptr<LocalCluster>> open(LocalClusterOptions options);
  ~LocalCluster() override;

  /// The one job.
  const JobKey& key() const;
  const std::string& job_uid() const;
  /// Absolute.
  const std::filesystem::path& run_dir() const;
  /// Where checkpoints of the job are: what TRAINYARD_CHECKPOINT_DIR says.
  const std::filesystem::path& checkpoint_dir() const;

  /// Sets a variable of pods created from now on (the control address, once it is known).
  void set_environment(const std::string& name, const std::string& value);

  /// Whether the run directory is still where it was opened; false once somebody has removed, moved
  /// or replaced it, after which nothing can be written down any more.
  bool is_in_place() const;
  /// What the run directory's run was before.
  TakenUp taken_up() const;

  /// Asks every pod to end without writing it down, for where nothing can be (a full disk).
  void terminate_all();
  /// Kills every pod's processes at once, as a second Ctrl-C wants.
  void kill_all();

  Result<Observed> observe(const JobKey& key) override;
  Result<std::string> put_status(const JobKey& key, const std::string& uid,
                                 const api::TrainingJobStatus& status,
                                 const std::string& resource_version) override;
  Result<CreateReply> create_pod(const PodSpec& spec) override;
  Status delete_pod(const PodRef& pod, Duration grace) override;
  Status remove_member_label(const PodRef& pod) override;
  Status promote_pod(const PodRef& pod, int node_index) override;
  Status delete_job(const JobKey& key, const std::string& uid) override;
  Status emit_event(const JobKey& key, const Event& event) override;
  void set_listener(Listener listener) override;

 private:
  class Impl;
  explicit LocalCluster(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace trainyard::control::local

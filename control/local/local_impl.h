#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <poll.h>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "common/io/file.h"
#include "control/local/event_log.h"
#include "control/local/job_store.h"
#include "control/local/local_cluster.h"
#include "control/local/pod_record.h"
#include "control/local/process.h"

/// The inside of LocalCluster: its pods and calls are in local_cluster.cc, how pods start and end
/// in local_pods.cc.
namespace trainyard::control::local {

/// The pods below `pods_dir`, of a run that this process has locked. `clock` outlives it. Errors of
/// its calls: kIo, kInvalidData.
OldPods old_pods_of(const std::filesystem::path& pods_dir, const Clock& clock);

ObservedPod view_of(const PodRecord& record);

/// The state and the thread behind LocalCluster.
class LocalCluster::Impl {
 public:
  Impl(LocalClusterOptions options, DirectoryLock lock, JobStore store,
       const api::TrainingJob& job);

  /// Takes over the recorded pods of an earlier process and starts the watcher.
  Status adopt();
  void stop();

  Result<Observed> observe(const JobKey& key);
  Result<CreateReply> create_pod(const PodSpec& spec);
  Status delete_pod(const PodRef& ref, Duration grace);
  Status remove_member_label(const PodRef& ref);
  Status promote_pod(const PodRef& ref, int node_index);
  Status delete_job(const JobKey& key, const std::string& uid);
  Status emit_event(const Event& event);
  void terminate_all();
  void kill_all();
  bool is_in_place() const;
  void set_listener(Listener listener);
  void set_environment(const std::string& name, const std::string& value);
  void tell();

  const JobKey& key() const { return key_; }
  const std::string& job_uid() const { return job_uid_; }
  const std::filesystem::path& run_dir() const { return options_.run_dir; }
  const std::filesystem::path& checkpoint_dir() const { return checkpoint_dir_; }
  JobStore& store() { return store_; }

 private:
  struct Pod {
    PodRecord record;
    UniqueFd pidfd;  ///< readable when it has ended; invalid once it was seen to
  };

  std::filesystem::path pods_dir() const { return options_.run_dir / "pods"; }
  std::filesystem::path dir_of(const std::string& name) const { return pods_dir() / name; }
  std::map<std::string, std::string> referable(const PodSpec& spec) const;
  std::map<std::string, std::string> environment_of(const PodSpec& spec,
                                                    const std::string& pod_uid) const;
  Result<Pod> start(const PodSpec& spec, const std::string& pod_uid);
  Result<Pod*> find(const PodRef& ref);
  static void ask_to_end(const Pod& pod);
  void note_end(Pod& pod);
  bool never_began(const Pod& pod) const;
  Status adopt_one(PodRecord record);
  Status forget(const std::string& name);
  void wake() const;

  void watch(const std::stop_token& stop);
  bool handle_ended(const std::vector<pollfd>& polled);
  int poll_timeout_ms() const;
  void kill_overdue();

  LocalClusterOptions options_;
  DirectoryLock lock_;
  JobStore store_;
  const JobKey key_;
  const std::string job_uid_;
  const int64_t rendezvous_port_;
  const bool has_engine_;
  const std::filesystem::path checkpoint_dir_;
  UniqueFd wake_fd_;

  mutable std::mutex mutex_;         ///< guards pods_, options_.environment, events_
  std::map<std::string, Pod> pods_;  ///< by name
  EventLog events_;

  std::mutex listener_mutex_;  ///< held while the listener runs; taken with mutex_ free
  Listener listener_;
  std::jthread watcher_;
};

}  // namespace trainyard::control::local

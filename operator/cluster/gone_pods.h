#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "control/observed.h"

namespace trainyard::cluster {

/// Members of jobs as they were last known when they went, so that a loss that nobody saw coming
/// (the kubelet was quick, the removal was forced) is told with its pod, node and reason. At most
/// one for each node index. Thread-safe.
class GonePods {
 public:
  void went(const std::string& job_uid, const control::ObservedPod& pod);
  /// Those in whose place there is no pod yet, by node index. `present`: the job's pods.
  std::vector<control::ObservedPod> of(const std::string& job_uid,
                                       const std::vector<control::ObservedPod>& present);
  void forget(const std::string& job_uid);

 private:
  using Pods = std::map<int, control::ObservedPod>;  ///< by node index

  std::mutex mutex_;
  std::map<std::string, Pods> pods_;  ///< by job UID; guarded by mutex_
};

}  // namespace trainyard::cluster

#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/base/time.h"
#include "control/observed.h"

namespace trainyard::cluster {

/// Pods of jobs that were listed because a cache might be behind, for as long as it is: what has
/// been seen once is not unseen, whoever looks next. Thread-safe.
class ListedPods {
 public:
  using Pods = std::shared_ptr<const std::vector<control::ObservedPod>>;
  /// A list asked for at `asked`, and the resourceVersion at which it holds.
  struct List {
    std::string ns;
    std::string version;
    MonoTime asked{};
    Pods pods;
  };

  void keep(const std::string& job_uid, List list);
  /// The job's pods by a list that is newer than a cache that shows everything up to `version`.
  /// nullptr: there is none, and none will be until another is kept.
  Pods newer_than(const std::string& version, const std::string& job_uid);
  /// The cache of a namespace, or of all (""), has taken over a list asked for at `started`: it is
  /// ahead, whatever its version says (that of a server that was restored begins anew).
  void cache_listed(const std::string& ns, MonoTime started);
  void forget(const std::string& job_uid);
  size_t size() const;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, List> lists_;  ///< by job UID; guarded by mutex_
};

}  // namespace trainyard::cluster

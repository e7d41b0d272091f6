#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/api/training_job.h"
#include "common/base/clock.h"
#include "common/base/error.h"
#include "common/base/time.h"
#include "common/log/log.h"
#include "control/observed.h"
#include "operator/kube/client.h"

namespace trainyard::cluster {

/// Keeps the final goodput ledger of jobs after their objects are gone: in each namespace with jobs
/// a ConfigMap of the name kName, one entry per job, key "<job>.<uid>", with the newest kKept ends.
/// No decision rests on it. docs/adr/0035-ledgers-of-jobs-that-are-gone.md. Thread-safe.
class Ledgers {
 public:
  static constexpr char kName[] = "trainyard-ledgers";
  /// The label by which the operator knows the ConfigMap as its own.
  static constexpr char kLabel[] = "trainyard.dev/ledgers";
  static constexpr size_t kKept = 100;
  /// Jobs that have gone and whose entries are not written yet; beyond them the oldest is dropped.
  static constexpr size_t kMaxWaiting = 1000;
  /// How long an entry is tried to be written, from the first failure or the job's deletion on.
  static constexpr std::chrono::minutes kTriesFor{10};
  /// How long another caller may write in a namespace before nobody waits for it any more.
  static constexpr std::chrono::seconds kLongestWait{1};
  /// Entries that are written at once, each in another namespace: a server that does not answer
  /// holds up no more workers.
  static constexpr int kWriters = 2;
  /// Entries that one keep_gone() writes.
  static constexpr int kAtOneLook = 10;
  /// Namespaces whose ConfigMaps are remembered; beyond them some are read again.
  static constexpr size_t kMaxNamespaces = 100;

  /// All outlive it.
  Ledgers(const kube::Client& client, const Clock& clock, Logger& logger);

  /// Writes the entry of a job that is Complete or Failed, once per process; does nothing for other
  /// jobs, and for jobs that never started. Blocks for two calls to the server, and before for
  /// twice kLongestWait at most. After a failure the server is not asked again before as much time
  /// has passed as it has taken. Where the server refuses the ConfigMap (quota, a namespace that is
  /// being deleted), or somebody else has the name, or another try would come after kTriesFor, it
  /// logs so and succeeds. Errors: kConflict, also where it is too early for another try;
  /// kUnavailable where another entry of the namespace, or kWriters of any, are being written; and
  /// those of the server but kNotFound, worth another try.
  Status keep(const api::ObjectMeta& job, const api::TrainingJobStatus& status);

  /// The cache has seen the job's object go. Does not block. Who does not lead notes it as well:
  /// the leader may end before it has written the entry. Returns whether its entry waits for
  /// keep_gone().
  bool gone(const api::ObjectMeta& job, const api::TrainingJobStatus& status);
  /// No object has this UID any more.
  void forget(const std::string& job_uid);
  /// Writes kAtOneLook of the entries of jobs which have gone within kTriesFor, until the first
  /// that fails: those whose next try is due longest come first. Not for the reconciler of a job,
  /// which it would hold up: a queue has gone_jobs() for it. Errors: as of keep(); the entry waits
  /// on.
  Status keep_gone();
  /// Whether entries wait for keep_gone().
  bool waits() const;
  /// What stands for keep_gone() in a queue of jobs: no job has this key. As a queue gives a key to
  /// one worker at a time, a server that does not answer holds up one worker.
  static control::JobKey gone_jobs() { return {}; }

 private:
  /// What became of an entry so far.
  struct Tries {
    MonoTime since{};  ///< the first, or of a job that has gone when it went
    MonoTime next{};   ///< not asked again before
    Error failure;     ///< the newest; without a message: none
  };
  struct Entry {
    control::JobKey key;
    std::string uid;
    nlohmann::json text;
    Tries tries;  ///< of one that waits
  };
  /// Those that write at once, see Turn.
  struct Writers {
    std::mutex mutex;  ///< guards all below
    std::condition_variable done;
    int count = 0;
    std::chrono::steady_clock::time_point newest;  ///< when it began
  };
  /// What this process does in one namespace.
  struct Namespace {
    Writers writers;               ///< one
    std::set<std::string> stored;  ///< keys seen in the ConfigMap; of whoever has the turn
  };
  class Turn;

  std::shared_ptr<Namespace> namespace_of(const std::string& name);
  std::optional<Entry> next_gone();
  void drop_oldest(const char* why);
  void drop_late();
  bool is_late(MonoTime since) const { return clock_.mono() - since >= kTriesFor; }
  Status try_to_write(const Entry& entry, Tries& tries);
  Status write(const Entry& entry);
  Status create(const Entry& entry);
  Status judge(const kube::ApiError& error, std::string_view verb, const Entry& entry);
  void give_up(const Entry& entry, const std::string& why);

  const kube::Client& client_;
  const Clock& clock_;
  Logger& logger_;
  mutable std::mutex mutex_;  ///< guards all below
  std::map<std::string, std::shared_ptr<Namespace>> namespaces_;
  std::set<std::string> written_;         ///< UIDs of jobs whose objects exist
  std::map<std::string, Tries> failing_;  ///< by UIDs of such jobs
  std::deque<Entry> waiting_;             ///< oldest first
  Writers writers_;                       ///< in all namespaces; has a mutex of its own
};

}  // namespace trainyard::cluster

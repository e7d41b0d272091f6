#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/manual_clock.h"
#include "tests/support/sim/api_server.h"
#include "tests/support/sim/controllers.h"
#include "tests/support/sim/replica.h"
#include "tests/support/sim/watch_server.h"

namespace trainyard::sim {

/// What goes wrong at one write of the operator, or from it on.
enum class Fault {
  kNone,
  kDieBefore,    ///< the process ends before the write
  kDieAfter,     ///< the process ends after the write, before its answer
  kLoseRequest,  ///< the write is not done, no answer comes
  kLoseAnswer,   ///< the write is done, no answer comes
  kRival,        ///< somebody changes the job just before (409 where its version is a precondition)
  kThrottled,    ///< 429
  kServerError,  ///< 500
  kExpireWatches,      ///< history is compacted, every watch gets 410: all is listed anew
  kCutWatches,         ///< every watch is cut: it goes on where it was
  kSilenceWatches,     ///< nothing comes on the watches, until they time out
  kHoldPods,           ///< the pods' watch caches stand still for a while
  kHoldJobs,           ///< the jobs' do
  kHandOver,           ///< after this reconcile the standby leads, its caches as they are
  kHandOverStalePods,  ///< the standby sees no pods' changes from here on, and leads a little later
  kHandOverStaleJobs,  ///< the same of the job's
  kFreeze,             ///< the process stands still before the write; the standby leads; it wakes
};
inline constexpr int kFaults = 17;
std::string_view name_of(Fault fault);

/// How often which fault met which write; of Fault::kNone: how many met none.
using FaultMatrix = std::array<std::array<int64_t, kWriteKinds>, kFaults>;

/// A cluster in one thread: API servers, controllers, nodes, a leader and, where wanted, a standby
/// of the operator, and a clock that moves to the next thing that is due. The same options and the
/// same calls give the same history.
class SimCluster {
 public:
  struct Options {
    uint64_t seed = 1;
    /// Who goes next is drawn from the seed, controllers are late, and the world moves while a
    /// reconcile is under way; else everything comes in a fixed order and at once.
    bool shuffled = false;
    bool standby = false;
    bool reconciles = true;  ///< false: the caches are kept, and the test acts
    int64_t nodes = 4;
    int64_t pods_per_node = 2;
    Logger* logger = nullptr;  ///< of the operator, for people
  };
  /// Decides about each write in turn; `index` counts all writes from 0.
  using FaultPlan = std::function<Fault(WriteKind kind, int64_t index)>;
  /// Decides about each event that a watcher reads, counted over all.
  using EventPlan = std::function<EventWay(const std::string& plural, int64_t index)>;

  explicit SimCluster(const Options& options);
  ~SimCluster();
  SimCluster(const SimCluster&) = delete;
  SimCluster& operator=(const SimCluster&) = delete;

  // ---- Time ------------------------------------------------------------------------------------
  /// Everything that happens within this time.
  void run_for(Duration duration);
  /// The next thing that can happen without time passing; whether there was one.
  bool step();
  const Clock& clock() const { return clock_; }

  // ---- Users -----------------------------------------------------------------------------------
  /// The job in namespace "default". The answer's code.
  int apply_job(const std::string& name, const Json& spec);
  /// Merges into the spec, as kubectl patch does.
  int edit_job(const std::string& name, const Json& change);
  /// `propagation`: Background, Foreground or Orphan.
  int delete_job(const std::string& name, const std::string& propagation);
  int delete_object(const ObjectKey& key) { return user_call("delete", key, {}).code; }
  int delete_pod(const std::string& name, std::optional<int64_t> grace = std::nullopt);
  /// The pod gets the condition DisruptionTarget and is deleted, as by a drain.
  void evict_pod(const std::string& name);
  /// The pod's trainer exits as soon as its kubelet looks; nothing where there is no such pod.
  void exit_pod(const std::string& name, int code);

  // ---- Looking ---------------------------------------------------------------------------------
  /// null where there is none.
  Json job(const std::string& name) const;
  /// Pods with the label of this job, by name.
  std::vector<Json> pods_of(const std::string& job) const;
  /// Its member of the index that is not over; null where there is none.
  Json member(const std::string& job, int index) const;

  // ---- Faults ----------------------------------------------------------------------------------
  void set_fault_plan(FaultPlan plan) { fault_plan_ = std::move(plan); }
  void set_event_plan(EventPlan plan) { event_plan_ = std::move(plan); }
  /// No fault from now on, caches follow at once, whoever is frozen or dead is replaced.
  void heal();
  /// The server of a standby is behind by this much from now on.
  void set_lag(size_t server, Duration lag) { servers_.at(server)->set_lag(lag); }
  void hold(size_t server, const std::string& plural, Duration how_long);
  /// The standby leads from now on, its caches as they are; the leader ends, and another process
  /// becomes the standby.
  void hand_over();

  int64_t writes() const { return writes_; }
  int64_t events() const { return events_; }
  int64_t reconciles() const { return reconciles_; }
  int64_t faults() const { return faults_; }
  const FaultMatrix& matrix() const { return matrix_; }
  /// When processes of the operator ended, in order.
  const std::vector<MonoTime>& ends() const { return ends_; }
  /// The world did not come to rest within this many steps without time passing.
  bool spins() const { return spins_; }

  ApiServer& api() { return api_; }
  Controllers& controllers() { return controllers_; }
  /// The process that leads.
  Replica& leader() { return *replicas_[leader_]; }
  std::mt19937_64& random() { return random_; }

 private:
  std::unique_ptr<Replica> make_replica(size_t server);
  Passage before_write(size_t server, const Call& call, WriteKind kind);
  Passage strike(size_t server, const Call& call, Fault fault);
  void freeze(size_t server);
  void hand_over_later(size_t server, const std::string& plural);
  void interleave(size_t server);
  bool step_others(size_t busy);
  bool step_replica(size_t index, bool may_reconcile);
  bool step_controllers();
  void replace_dead();
  std::optional<MonoTime> next_due();
  bool chance(int of);
  void touch_job(const Call& call);
  Answer user_call(const std::string& verb, const ObjectKey& key, Json body);

  const Options options_;
  std::mt19937_64 random_;
  testing_support::ManualClock clock_;
  Store store_;
  ApiServer api_;
  Controllers controllers_;
  std::vector<std::unique_ptr<WatchServer>> servers_;
  std::vector<std::unique_ptr<Replica>> replicas_;
  size_t leader_ = 0;
  std::optional<MonoTime> round_at_;
  int64_t incarnations_ = 0;

  FaultPlan fault_plan_;
  EventPlan event_plan_;
  FaultMatrix matrix_{};
  std::vector<MonoTime> ends_;
  int64_t writes_ = 0;
  int64_t events_ = 0;
  int64_t reconciles_ = 0;
  int64_t faults_ = 0;
  int depth_ = 0;  ///< of worlds that move while a call is under way
  std::optional<size_t> frozen_;
  std::optional<size_t> doomed_;  ///< ends after its reconcile: it has lost its lease
  bool hand_over_next_ = false;
  std::optional<MonoTime> hand_over_at_;
  bool spins_ = false;
};

}  // namespace trainyard::sim

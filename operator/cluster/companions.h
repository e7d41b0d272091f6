#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include "common/api/training_job.h"
#include "common/base/error.h"
#include "common/base/time.h"
#include "common/log/log.h"
#include "control/observed.h"
#include "operator/kube/client.h"

namespace trainyard::cluster {

/// Keeps what stands beside the pods: the headless Service, the engine's ConfigMap and that with
/// the authorities of the control stream before the pods of a generation, the PodDisruptionBudget
/// from when a gang of more than one is up until it is to end. What was brought in line is
/// remembered, so that nothing is asked twice of the server. Thread-safe for different jobs.
class Companions {
 public:
  /// Client and logger outlive it. `authorities`: PEM of those whom agents are to trust; empty
  /// while nobody serves the control stream; absent: never.
  Companions(const kube::Client& client, Logger& logger,
             std::function<std::string()> authorities = {});

  /// As control::Cluster::keep_companions.
  Result<std::optional<control::Refusal>> keep(const api::ObjectMeta& job,
                                               const api::TrainingJobSpec& spec,
                                               const api::TrainingJobStatus& status);
  /// Somebody has taken one of these away, or there is none; whether the job is to be looked at for
  /// it.
  bool lost(const kube::Resource& resource, const std::string& job_uid);
  /// In how long there is another try at what could not be made yet, or was taken away while it was
  /// made; nullopt: all stands. Never at once: a look that did not come to it (the job's status
  /// cannot be written, say) has another one first.
  std::optional<Duration> due_in(const std::string& job_uid);
  /// The job is gone, and with it the server's garbage collector takes the rest away.
  void forget(const std::string& job_uid);

 private:
  static constexpr int64_t kUnknown = -1;
  struct Kept {
    int64_t generation = 0;       ///< whose Service and ConfigMap are there
    int64_t spec = 0;             ///< metadata.generation whose ConfigMap is there
    std::string authorities;      ///< that its agents are given
    int64_t budgeted = kUnknown;  ///< members that the budget is made for; 0: there is none
    bool presumed_none = false;   ///< by a view of the job, which may be older than its budget
    bool budget_is_late = false;  ///< what has its name must go first
  };
  /// What was there and perhaps is not.
  struct Lost {
    bool service = false;
    bool budget = false;

    bool matters_to(const Kept& kept) const { return service || (budget && kept.budgeted > 0); }
  };

  /// Whether objects are thought to stand before they are asked for.
  enum class Before { kUnknown, kThere };
  /// The object as the server has it, unless it is refused.
  struct Ensured {
    std::optional<control::Refusal> refusal;
    nlohmann::json object;
  };

  Result<std::optional<control::Refusal>> keep_objects(const api::ObjectMeta& job,
                                                       const api::TrainingJobSpec& spec,
                                                       int64_t generation, Before before,
                                                       Kept& kept);
  Result<Ensured> ensure(const kube::Resource& resource, const nlohmann::json& object,
                         const api::ObjectMeta& job, Before before);
  Result<Ensured> settle(const kube::Resource& resource, const kube::ObjectName& name,
                         const nlohmann::json& object, nlohmann::json found,
                         const api::ObjectMeta& job);
  void add_foreign_budget(const api::ObjectMeta& job, control::Refusal& refusal) const;
  Result<std::optional<control::Refusal>> keep_authorities(const api::ObjectMeta& job,
                                                           Before before, Kept& kept);
  Status remove_leftover(const kube::Resource& resource, const kube::ObjectName& name,
                         const nlohmann::json& object);
  Status keep_budget(const api::ObjectMeta& job, int64_t members, Before before, Kept& kept);
  // These say whether it stands as it is to stand; if not, there is another try.
  Result<bool> put_budget(const api::ObjectMeta& job, int64_t members);
  Result<bool> make_budget(const api::ObjectMeta& job, int64_t members);
  Result<bool> settle_budget(const api::ObjectMeta& job, int64_t members);
  Result<bool> adjust_budget(const api::ObjectMeta& job, const nlohmann::json& budget,
                             int64_t members);
  Status remove_budget(const api::ObjectMeta& job);
  Kept recall(const std::string& job_uid);
  void remember(const std::string& job_uid, const Kept& kept);

  const kube::Client& client_;
  Logger& logger_;
  const std::function<std::string()> authorities_;
  std::mutex mutex_;
  std::map<std::string, Kept> kept_;  ///< by job UID; guarded by mutex_
  std::map<std::string, Lost> lost_;  ///< since the last look; likewise
};

}  // namespace trainyard::cluster

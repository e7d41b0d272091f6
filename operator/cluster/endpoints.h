#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/api/training_job.h"
#include "common/base/clock.h"
#include "common/base/error.h"
#include "common/log/log.h"
#include "control/observed.h"
#include "operator/kube/client.h"
#include "operator/render/endpoints.h"

namespace trainyard::cluster {

/// Keeps the EndpointSlices behind a job's Service: under which name which address is. Kubernetes'
/// own controllers would write them anew for every few pods that come or become ready, each time
/// all of the job, which is what the start of a large gang costs the API server most; whoever makes
/// the pods knows when it is worth it. What was written is remembered. Thread-safe for different
/// jobs.
class Endpoints {
 public:
  /// The job's pods as the server has them now.
  using ListPods =
      std::function<Result<std::vector<control::ObservedPod>>(const control::Observed&)>;

  /// Client, clock and logger outlive it.
  Endpoints(const kube::Client& client, const Clock& clock, Logger& logger, ListPods list_pods);

  /// Brings the slices in line with the pods that count: at once where pod 0 is concerned, by whose
  /// name the others meet, where all have their addresses, where a new generation has lost some and
  /// where the job is over; else not more often than every 3 s. A failure is logged and tried
  /// again, and holds up nobody.
  void keep(const control::Observed& observed, const api::TrainingJobStatus& status);

  /// In how long what was put off is due; nullopt: nothing was. Never at once: a look that did not
  /// come to it (the job's status cannot be written, say) has another one first.
  std::optional<Duration> due_in(const std::string& job_uid);

  /// Somebody has taken a slice away; whether the job is to be looked at for it.
  bool lost(const std::string& job_uid);
  /// The job's Service is gone. Where Kubernetes keeps the slices it did so by that Service's
  /// selector, which the one that is made in its place does not have.
  void lost_service(const std::string& job_uid);
  /// The job is gone, and with it the server's garbage collector takes its slices away.
  void forget(const std::string& job_uid);

 private:
  using Listed = std::vector<render::Endpoint>;  ///< by node index
  struct Slice {
    std::string uid;  ///< empty: the server has none
    std::string resource_version;
    render::AddressType type = render::AddressType::kIPv4;
  };
  /// What this process knows of the server's slices.
  enum class Sight { kNone, kDoubtful, kClear };
  struct Kept {
    Sight sight = Sight::kNone;
    bool selected = false;  ///< Kubernetes does it all
    Listed written;
    std::optional<int64_t> outdated_look;  ///< one that showed less than the server had already
    std::vector<Slice> slices;             ///< by part
    int64_t generation = 0;                ///< in which it was written
    std::optional<MonoTime> written_at;
    std::optional<MonoTime> not_before;  ///< after a failure
    std::optional<MonoTime> due;         ///< guarded by mutex_
    bool lost = false;                   ///< a slice, since the last look; likewise
    bool lost_service = false;           ///< likewise
  };

  std::shared_ptr<Kept> kept_of(const std::string& job_uid);
  void take_losses(Kept& kept);
  void put_off(Kept& kept, std::optional<MonoTime> until);
  Status keep(const control::Observed& observed, const api::TrainingJobStatus& status, Kept& kept);
  Status learn(const api::ObjectMeta& job, Kept& kept) const;
  Status write(const control::Observed& observed, const Listed& wanted, Kept& kept);
  Status put(const control::Observed& observed, int64_t part,
             std::span<const render::Endpoint> endpoints, Kept& kept);
  Status leave_to_kubernetes(const control::Observed& observed, const std::string& why) const;

  const kube::Client& client_;
  const Clock& clock_;
  Logger& logger_;
  const ListPods list_pods_;
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Kept>> kept_;  ///< by job UID; guarded by mutex_
};

}  // namespace trainyard::cluster

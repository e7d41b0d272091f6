#include "control/cluster.h"

namespace trainyard::control {

Result<std::vector<ObservedPod>> Cluster::list_pods(const Observed& observed) {
  return observed.pods;
}

std::optional<Duration> Cluster::look_again_in(const std::string& /*job_uid*/) {
  return std::nullopt;
}

Result<std::optional<Refusal>> Cluster::try_pod(const PodSpec& /*spec*/) {
  return std::optional<Refusal>();
}

Result<std::optional<Refusal>> Cluster::keep_companions(const Observed& /*observed*/,
                                                        const api::TrainingJobStatus& /*status*/) {
  return std::optional<Refusal>();
}

Status Cluster::for_each(int64_t count, const std::function<Status(int64_t)>& call) {
  for (int64_t i = 0; i < count; ++i)
    TRAINYARD_TRY(call(i));
  return {};
}

}  // namespace trainyard::control

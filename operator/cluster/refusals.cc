#include "operator/cluster/refusals.h"

#include "common/api/training_job.h"

namespace trainyard::cluster {

std::optional<control::Refusal> refusal_of(const kube::ApiError& error) {
  switch (error.reason) {
    case kube::Reason::kBadRequest:
    case kube::Reason::kInvalid:
    case kube::Reason::kRequestEntityTooLarge:
      return control::Refusal{api::reason::kInvalidPodTemplate, error.message};
    case kube::Reason::kForbidden:
      return control::Refusal{api::reason::kAdmissionRefused, error.message};
    default:
      break;
  }
  constexpr int kBadRequest = 400;
  constexpr int kUnprocessable = 422;
  constexpr int kForbidden = 403;
  // Webhooks may answer without a reason.
  if (error.status == kBadRequest || error.status == kUnprocessable) {
    return control::Refusal{api::reason::kInvalidPodTemplate, error.message};
  }
  if (error.status == kForbidden) {
    return control::Refusal{api::reason::kAdmissionRefused, error.message};
  }
  return std::nullopt;
}

}  // namespace trainyard::cluster

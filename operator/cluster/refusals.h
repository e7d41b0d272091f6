#pragma once

#include <optional>

#include "control/observed.h"
#include "operator/kube/api_error.h"

namespace trainyard::cluster {

/// What an answer to a creation means for the job: InvalidPodTemplate for what the server cannot
/// accept as it is (400, 422), AdmissionRefused for what it does not allow now (403: quota, policy,
/// a missing ServiceAccount, rights). nullopt: nothing about the job, try again.
std::optional<control::Refusal> refusal_of(const kube::ApiError& error);

}  // namespace trainyard::cluster

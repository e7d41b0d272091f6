#pragma once

#include <optional>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "control/observed.h"
#include "operator/kube/api_error.h"

namespace trainyard::cluster {

/// What an answer to a creation means for the job: InvalidPodTemplate for what the server cannot
/// accept as it is (400, 422), AdmissionRefused for what it does not allow now (403: quota, policy,
/// a missing ServiceAccount, rights). nullopt: nothing about the job, try again.
std::optional<control::Refusal> refusal_of(const kube::ApiError& error);

/// The server counts the containers and variables of the pod that was rendered; this makes them
/// those of the template, before which the operator puts some of its own. `pod` is the rendered pod
/// of `pod_template`, a PodTemplateSpec.
void name_indexes(const nlohmann::json& pod, const nlohmann::json& pod_template,
                  control::Refusal& refusal);

/// The server says of a quantity that it cannot read ("cpu: lots") neither where it stands nor what
/// it is: this puts field and value before its words. Any other refusal stays as it is.
/// `pod_template` is a PodTemplateSpec as JSON.
void name_quantity(std::string_view pod_template, control::Refusal& refusal);

}  // namespace trainyard::cluster

#pragma once

#include "common/text/document.h"

/// Internal to common/api: the schema of `spec.template`.
namespace trainyard::api::schema {

/// A PodTemplateSpec of which only the parts are typed that rules look at (PodTemplate); the API
/// server keeps everything else as it is, and the operator has it checked by a strict dry run of a
/// pod. What is reserved for the operator (labels, variables, nodeName, owners) is refused here.
text::Node pod_template();

}  // namespace trainyard::api::schema

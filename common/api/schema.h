#pragma once

#include "common/text/document.h"

/// Internal to common/api: the OpenAPI v3 schema of a TrainingJob in the structural form that
/// Kubernetes asks of custom resources, made from the field tables: types, descriptions, defaults,
/// bounds, enumerations, required fields. Rules that relate fields are crd_rules.h's.
/// Source: kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions.
namespace trainyard::api::schema {

/// The schema of the whole object; metadata is left to the API server.
text::Node training_job();

}  // namespace trainyard::api::schema

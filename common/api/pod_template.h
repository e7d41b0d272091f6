#pragma once

#include <string>

#include "common/api/fault_list.h"
#include "common/text/document.h"

/// Internal to common/api: a pod template as a user wrote it, against Kubernetes' PodTemplateSpec.
namespace trainyard::api {

/// Adds what an API server of kPodTypesVersion refuses: unknown keys, wrong kinds of values,
/// missing fields, words that a field does not take, quantities, names, numbers out of range, and
/// items of a list that are the same. Fields that have a fault already are left out. What depends
/// on a cluster (quotas, classes, admission) is not looked at.
void check_pod_template(const text::Node& pod_template, const std::string& path, FaultList& faults);

/// The rules that relate the fields of one object of the named type (pod_types.h) to each other.
void check_pod_rules(std::string_view type, const text::Node& object, const std::string& path,
                     FaultList& faults);

}  // namespace trainyard::api

#pragma once

#include <string>

namespace trainyard::api {

/// manifests/crd.yaml: the CustomResourceDefinition of TrainingJob, made from the field tables and
/// crd_rules.h: schema with descriptions, defaults, bounds and rules in CEL; printer columns; the
/// subresources status and scale.
std::string crd_manifest();

}  // namespace trainyard::api

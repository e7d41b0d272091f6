#pragma once

#include <span>

#include "tests/apiserver/api/bad_manifests.h"

namespace trainyard::apiserver {

/// Manifests that the schema takes and that cannot run: values whose time has not come, and what
/// only the presets, the template and arithmetic show.
std::span<const BadManifest> parked_manifests();

}  // namespace trainyard::apiserver

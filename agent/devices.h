#pragma once

#include <filesystem>

#include "common/api/engine_spec.h"

namespace trainyard::agent {

/// `device` of an engine configuration (TRAINYARD_ENGINE_CONFIG); Auto where it cannot be read,
/// which the ranks will say.
api::DeviceKind device_of_engine(const std::filesystem::path& config);

}  // namespace trainyard::agent

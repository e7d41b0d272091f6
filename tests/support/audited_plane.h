#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "tests/support/audit_log.h"
#include "tests/support/control_plane.h"

namespace trainyard::testing_support {

/// Says that in this namespace a process stands still and goes on later, as Case::late_writers has
/// it.
void expect_late_writers(const ControlPlane& plane, const std::string& name_space);

/// The invariants that operators have broken on the plane, one namespace after the other. `events`
/// are of its log; `pods` and `jobs` are lists of what is there at rest.
std::vector<std::string> violations_on(const ControlPlane& plane,
                                       const std::vector<AuditEvent>& events,
                                       const nlohmann::json& pods, const nlohmann::json& jobs);

}  // namespace trainyard::testing_support

#pragma once

#include <nlohmann/json_fwd.hpp>

#include "control/observed.h"

/// The one JSON form of a container's exit, in exit.json and pod.json.
namespace trainyard::control::local {

/// The message keeps its newest kMaxExitMessageBytes; the log has the rest.
nlohmann::json to_json(const ContainerExit& exit);

/// Throws nlohmann::json::exception for what to_json did not write.
ContainerExit exit_from_json(const nlohmann::json& object);

inline constexpr size_t kMaxExitMessageBytes = 4096;

}  // namespace trainyard::control::local

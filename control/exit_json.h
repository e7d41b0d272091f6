#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "control/container_exit.h"

/// The one JSON form of a container's exit, in exit.json, pod.json and
/// what an agent leaves as its container's last words.
namespace trainyard::control {

/// The message keeps its newest kMaxExitMessageBytes; the log has the rest.
nlohmann::json to_json(const ContainerExit& exit);

/// The record as a line of at most `limit_bytes`; the message gives way.
std::string to_line(const ContainerExit& exit, size_t limit_bytes);

/// Throws nlohmann::json::exception for what to_json did not write.
ContainerExit exit_from_json(const nlohmann::json& object);

inline constexpr size_t kMaxExitMessageBytes = 4096;

}  // namespace trainyard::control

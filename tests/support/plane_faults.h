#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

/// What tests do to a control plane (tools/kubernetes) that is theirs alone. Failures are the
/// test's.
namespace trainyard::testing_support {

/// The port of 127.0.0.1 that a part of the plane in `folder` has taken: "api", "etcd".
uint16_t plane_port(const std::filesystem::path& folder, const std::string& part);

/// SIGKILL to a process of the plane ("etcd", "kube-apiserver"); returns when it is gone.
void kill_part(const std::filesystem::path& folder, const std::string& part);

/// Starts what has died of the plane, on the same ports and data; returns when it is ready.
void revive(const std::filesystem::path& folder);

/// etcd forgets all of the past up to a revision, as it does every five minutes.
void compact_history(const std::filesystem::path& folder, const std::string& revision);

}  // namespace trainyard::testing_support

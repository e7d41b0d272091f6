#pragma once

#include <string>

#include "common/base/error.h"
#include "operator/kube/client.h"

namespace trainyard::stream {

/// Label of the operator's pod that leads: the Service of the control stream selects it. Being
/// ready is not being the leader.
inline constexpr char kLeaderLabel[] = "trainyard.dev/leader";

/// Puts the label on `pod` and takes it from all other pods of its release in the namespace: one
/// that led before may have ended without a word. Errors: those of the API server.
Status label_leader(const kube::Client& client, const kube::ObjectName& pod);

}  // namespace trainyard::stream

#pragma once

#include <memory>

#include "tests/support/cluster_conformance.h"
#include "tests/support/control_plane.h"

namespace trainyard::testing_support {

/// A KubeCluster over a real API server as a World of the conformance suite: a namespace with one
/// job of two nodes, whose pods fake nodes run. `plane` is shared and outlives it.
std::unique_ptr<World> make_kube_world(std::shared_ptr<const ControlPlane> plane);

}  // namespace trainyard::testing_support

#include <memory>

#include "tests/support/kube_world.h"

namespace trainyard::testing_support {
namespace {

/// One control plane for all tests of this program.
std::shared_ptr<const ControlPlane> shared_plane() {
  static const auto plane = std::make_shared<const ControlPlane>();
  return plane;
}

INSTANTIATE_TEST_SUITE_P(KubeCluster, ClusterConformance, testing::Values(WorldFactory([] {
                           return make_kube_world(shared_plane());
                         })));

}  // namespace
}  // namespace trainyard::testing_support

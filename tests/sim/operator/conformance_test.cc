// The suite that every Cluster passes, on KubeCluster over the simulated server: what holds the
// model against the real server, which passes the same (tests/apiserver).
#include <memory>

#include "tests/support/cluster_conformance.h"
#include "tests/support/sim/sim_cluster.h"
#include "tests/support/sim/workloads.h"

namespace trainyard::testing_support {
namespace {

class SimWorld final : public World {
 public:
  SimWorld() {
    world_.apply_job("job", sim::job_spec(2));
    world_.run_for(std::chrono::seconds(1));
  }
  control::Cluster& cluster() override { return world_.leader().cluster(); }
  control::JobKey key() const override { return {"default", "job"}; }
  void move_on() override { world_.run_for(std::chrono::milliseconds(50)); }
  void finish_pod(const std::string& name, int exit_code) override {
    world_.exit_pod(name, exit_code);
  }

 private:
  sim::SimCluster world_{{.reconciles = false}};
};

INSTANTIATE_TEST_SUITE_P(SimCluster, ClusterConformance, testing::Values(WorldFactory([] {
                           return std::make_unique<SimWorld>();
                         })));

}  // namespace
}  // namespace trainyard::testing_support

#pragma once

#include <string>

#include "common/base/error.h"
#include "control/facts.h"
#include "control/local/local_cluster.h"

/// What ranks did while no `trainyard run` looked: the one that had started them died, and they
/// ended on their own.
namespace trainyard::cli {

/// Facts of agents; of ranks that have all ended well without an agent that told so, what they have
/// left on disk: their result and the newest checkpoint. Thread-safe.
class LeftFacts final : public control::FactsSource {
 public:
  /// Both outlive it.
  LeftFacts(const control::FactsSource& agents, control::local::LocalCluster& cluster)
      : agents_(agents), cluster_(cluster) {}

  /// Reads the folder of checkpoints at most a few times in the life of a job.
  control::StreamFacts facts(const std::string& job_uid) const override;

 private:
  const control::FactsSource& agents_;
  control::local::LocalCluster& cluster_;
};

/// Before another spec, or another try, replaces a run whose pods have all ended: where the job
/// that they were started for is thereby complete or has failed, writes that down. So an exit
/// counts for the spec that its pod was started with. Does nothing where the run directory holds
/// another job, or none. Errors: those of LocalCluster::open.
Status settle_ended_run(control::local::LocalClusterOptions wanted);

}  // namespace trainyard::cli

#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "tests/support/reporting_job.h"

namespace trainyard::testing_support {

inline api::TrainingJob job_of(int64_t nodes,
                               api::RestartStrategy strategy = api::RestartStrategy::kInPlace) {
  api::TrainingJob job = make_job(nodes);
  job.spec.failure_policy.restart_strategy = strategy;
  return job;
}

/// A job whose agents stay; the test plays the coordinator.
class StayingJob : public ReportingJob {
 public:
  explicit StayingJob(api::TrainingJob job) : ReportingJob(std::move(job)) { stay(); }

  void stay() {
    for (control::MemberFact& fact : facts.now.members)
      fact.stays = fact.says_joined = true;
  }

  void fail_rank(int index, int exit_code, int signal = 0) {
    control::ContainerExit exit;
    exit.rank = index;
    exit.exit_code = signal != 0 ? 128 + signal : exit_code;
    if (signal != 0) exit.signal = signal;
    exit.reason = "Error";
    exit.message = "boom";
    exit.finished_at = clock.now();
    facts.now.members.at(static_cast<size_t>(index)).failure = exit;
  }

  /// The order has been carried out: ranks of the status' generation run.
  void carry_out() {
    connect();
    stay();
  }
};

}  // namespace trainyard::testing_support

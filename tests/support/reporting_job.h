#pragma once

#include <utility>

#include <gtest/gtest.h>

#include "tests/support/job_driver.h"

namespace trainyard::testing_support {

/// A job of `nodes` nodes with one rank each, whose ranks report.
class ReportingJob : public JobDriver {
 public:
  explicit ReportingJob(api::TrainingJob job) : JobDriver(std::move(job)) {
    EXPECT_TRUE(settle());
    connect();
  }

  /// Every member has a stream and a rank that has just started.
  void connect() {
    facts.now.hosted = true;
    facts.now.generation = status().membership.generation;
    facts.now.rank_table_ready = true;
    facts.now.members.clear();
    facts.now.peer_reports.clear();
    facts.now.resumed_from_step.reset();
    for (int index = 0; index < status().nodes.target; ++index) {
      control::MemberFact fact;
      const control::ObservedPod pod = member(index);
      fact.pod_uid = pod.uid;
      fact.pod_name = pod.name;
      fact.node_index = index;
      fact.generation = facts.now.generation;
      fact.connected = true;
      fact.since = clock.now();
      fact.ranks.resize(1);
      fact.ranks[0].rank = index;
      fact.ranks[0].total_steps = 1000;
      fact.ranks[0].phase_since = clock.now();
      facts.now.members.push_back(std::move(fact));
    }
  }

  control::RankFact& rank(int index) {
    return facts.now.members.at(static_cast<size_t>(index)).ranks[0];
  }

  void set_phase(contract::Phase phase) {
    for (int index = 0; index < status().nodes.target; ++index) {
      rank(index).phase = phase;
      rank(index).phase_since = clock.now();
    }
  }

  /// Every rank completes a step now.
  void step_to(int64_t step) {
    for (int index = 0; index < status().nodes.target; ++index) {
      rank(index).phase = contract::Phase::kTraining;
      rank(index).step = step;
      rank(index).last_step_at = clock.now();
      rank(index).last_heartbeat_at = clock.now();
      rank(index).loss = 2.5;
      rank(index).step_seconds = 0.25;
    }
  }

  void disconnect(int index) {
    facts.now.members.at(static_cast<size_t>(index)).connected = false;
    facts.now.members.at(static_cast<size_t>(index)).since = clock.now();
  }
};

}  // namespace trainyard::testing_support

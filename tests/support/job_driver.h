#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "control/membership.h"
#include "control/reconciler.h"
#include "control/status_edit.h"
#include "tests/support/manual_clock.h"
#include "tests/support/memory_cluster.h"

namespace trainyard::testing_support {

/// Longer than any back-off of the tests' jobs.
inline constexpr std::chrono::seconds kBackoffOver{301};

/// Facts as a test sets them.
class StillFacts final : public control::FactsSource {
 public:
  control::StreamFacts facts(const std::string& /*job_uid*/) const override { return now; }
  control::StreamFacts now;
};

/// One job in a MemoryCluster under one reconciler and a clock that the test moves.
class JobDriver {
 public:
  explicit JobDriver(api::TrainingJob job) : cluster(clock, std::move(job)) {
    restart_controller();
  }

  /// A new controller process: nothing in memory.
  void restart_controller() {
    cluster.reconnect();
    reconciler = std::make_unique<control::Reconciler>(
        control::Reconciler::Options{&cluster, &clock, &facts, nullptr, {}, {}});
  }

  /// Reconciles and moves the world until kQuietRounds rounds write nothing; the clock stands. A
  /// crashed controller is replaced by a new one. Returns false if that does not come to rest.
  bool settle() {
    int quiet = 0;
    for (int round = 0; round < 200; ++round) {
      const size_t before = cluster.writes().size();
      const auto result = reconciler->reconcile(cluster.key());
      if (cluster.crashed()) {
        restart_controller();
        quiet = 0;
        continue;
      }
      if (result) last = *result;
      if (!result && result.error().code == ErrorCode::kNotFound) return true;
      cluster.step();
      quiet = cluster.writes().size() == before ? quiet + 1 : 0;
      if (quiet >= kQuietRounds) return true;
    }
    return false;
  }

  /// settle, then advance, then settle again.
  bool pass(Duration duration) {
    const bool before = settle();
    clock.advance(duration);
    return settle() && before;
  }

  /// Rounds without a write after which nothing more is to come, lagging views included.
  static constexpr int kQuietRounds = 12;

  api::TrainingJobStatus status() const { return cluster.truth().status; }

  std::string reason_of(api::ConditionType type) const {
    const api::TrainingJobStatus now = status();
    const api::Condition* condition = control::find_condition(now, type);
    return condition == nullptr ? "" : condition->reason;
  }

  std::string message_of(api::ConditionType type) const {
    const api::TrainingJobStatus now = status();
    const api::Condition* condition = control::find_condition(now, type);
    return condition == nullptr ? "" : condition->message;
  }

  bool is(api::ConditionType type) const { return control::is_true(status(), type); }

  /// The pod of this index that belongs to the current generation; fails the test if there is none.
  control::ObservedPod member(int index) const {
    const control::Observed truth = cluster.truth();
    const control::PodSets sets = control::sort_pods(truth.pods, truth.spec, truth.status);
    for (const auto* pod : sets.members) {
      if (pod->node_index == index) return *pod;
    }
    ADD_FAILURE() << "no member of index " << index;
    return {};
  }

  /// The member of this index exits.
  void fail(int index, int exit_code, const std::string& message = "boom") {
    control::ContainerExit exit;
    exit.exit_code = exit_code;
    exit.reason = "Error";
    exit.message = message;
    cluster.finish_pod(member(index).name, exit);
  }

  ManualClock clock;
  MemoryCluster cluster;
  StillFacts facts;
  std::unique_ptr<control::Reconciler> reconciler;
  control::Reconciled last;
};

}  // namespace trainyard::testing_support

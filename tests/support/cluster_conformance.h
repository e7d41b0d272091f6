#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "control/cluster.h"
#include "control/pod_spec.h"

/// What every Cluster must do, whatever stands behind it: instantiate ClusterConformance with a
/// factory of worlds (INSTANTIATE_TEST_SUITE_P).
namespace trainyard::testing_support {

/// One cluster with one job, and the hands that make its world move.
class World {
 public:
  virtual ~World() = default;
  virtual control::Cluster& cluster() = 0;
  virtual control::JobKey key() const = 0;
  /// Lets creates, starts and ends that are under way proceed a little; may wait briefly.
  virtual void move_on() = 0;
  /// Makes the pod's main process exit.
  virtual void finish_pod(const std::string& name, int exit_code) = 0;
};

using WorldFactory = std::function<std::unique_ptr<World>()>;

class ClusterConformance : public testing::TestWithParam<WorldFactory> {
 protected:
  void SetUp() override { world_ = GetParam()(); }

  control::Cluster& cluster() { return world_->cluster(); }
  control::JobKey key() const { return world_->key(); }

  control::Observed look() {
    auto observed = cluster().observe(key());
    EXPECT_TRUE(observed.has_value()) << (observed ? "" : observed.error().message);
    return observed ? *std::move(observed) : control::Observed{};
  }

  control::PodSpec spec_of(int index, int64_t generation = 1) {
    const control::Observed observed = look();
    return control::make_pod_spec(observed.metadata, observed.spec, index, generation, 2);
  }

  control::PodRef create(const control::PodSpec& spec) {
    const auto reply = cluster().create_pod(spec);
    EXPECT_TRUE(reply.has_value()) << (reply ? "" : reply.error().message);
    if (!reply) return {};
    EXPECT_EQ(reply->outcome, control::CreateReply::Outcome::kCreated);
    return {spec.namespace_name, spec.name, reply->uid};
  }

  const control::ObservedPod* pod_in(const control::Observed& observed, const std::string& uid) {
    for (const auto& pod : observed.pods) {
      if (pod.uid == uid) return &pod;
    }
    return nullptr;
  }

  /// Moves the world until `holds` does, or fails after a generous while.
  ::testing::AssertionResult eventually(
      const std::function<bool(const control::Observed&)>& holds) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (std::chrono::steady_clock::now() < deadline) {
      if (holds(look())) return ::testing::AssertionSuccess();
      world_->move_on();
    }
    return ::testing::AssertionFailure() << "not within 30 s";
  }

  ::testing::AssertionResult runs(const control::PodRef& ref) {
    return eventually([&](const control::Observed& observed) {
      const auto* pod = pod_in(observed, ref.uid);
      return pod != nullptr && pod->phase == control::PodPhase::kRunning && pod->ready;
    });
  }

  ::testing::AssertionResult is_gone(const control::PodRef& ref) {
    return eventually(
        [&](const control::Observed& observed) { return pod_in(observed, ref.uid) == nullptr; });
  }

  std::unique_ptr<World> world_;
};

}  // namespace trainyard::testing_support

#include "tests/support/cluster_conformance.h"

#include <atomic>
#include <set>

namespace trainyard::testing_support {

using control::CreateReply;
using control::Observed;
using control::ObservedPod;
using control::PodPhase;
using control::PodRef;
using control::PodSpec;

constexpr std::chrono::seconds kNoGrace{0};
constexpr std::chrono::seconds kGrace{30};

TEST_P(ClusterConformance, ObserveOfAnotherJobIsNotFound) {
  const auto observed = cluster().observe({"default", "no-such-job"});
  ASSERT_FALSE(observed.has_value());
  EXPECT_EQ(observed.error().code, ErrorCode::kNotFound);
}

TEST_P(ClusterConformance, StatusIsReadBackUnderItsNewVersion) {
  const Observed before = look();
  api::TrainingJobStatus status = before.status;
  status.membership.generation = 7;
  const auto version =
      cluster().put_status(key(), before.metadata.uid, status, before.metadata.resource_version);
  ASSERT_TRUE(version.has_value()) << version.error().message;
  EXPECT_NE(*version, before.metadata.resource_version);
  EXPECT_TRUE(eventually([&](const Observed& observed) {
    return observed.metadata.resource_version == *version && observed.status == status;
  }));
}

TEST_P(ClusterConformance, StatusOfAnOldVersionIsAConflictAndChangesNothing) {
  const Observed before = look();
  api::TrainingJobStatus status = before.status;
  status.membership.generation = 1;
  const auto version =
      cluster().put_status(key(), before.metadata.uid, status, before.metadata.resource_version);
  ASSERT_TRUE(version.has_value());
  api::TrainingJobStatus late = before.status;
  late.membership.generation = 99;
  const auto refused =
      cluster().put_status(key(), before.metadata.uid, late, before.metadata.resource_version);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kConflict);
  EXPECT_TRUE(eventually([&](const Observed& observed) {
    return observed.metadata.resource_version == *version &&
           observed.status.membership.generation == 1;
  }));
}

TEST_P(ClusterConformance, StatusUnderAnotherUidIsAConflict) {
  const Observed before = look();
  const auto refused =
      cluster().put_status(key(), "another-uid", before.status, before.metadata.resource_version);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kConflict);
}

TEST_P(ClusterConformance, ACreatedPodComesToRunAsItWasSpecified) {
  const PodSpec spec = spec_of(1, 3);
  const PodRef ref = create(spec);
  ASSERT_TRUE(runs(ref));
  const Observed observed = look();
  const ObservedPod* pod = pod_in(observed, ref.uid);
  ASSERT_NE(pod, nullptr);
  EXPECT_EQ(pod->name, spec.name);
  EXPECT_EQ(pod->node_index, 1);
  EXPECT_EQ(pod->created_generation, 3);
  EXPECT_TRUE(pod->member);
  EXPECT_FALSE(pod->terminating);
  EXPECT_FALSE(pod->node.empty());
  EXPECT_FALSE(pod->exit.has_value());
}

TEST_P(ClusterConformance, CreatingTheSamePodTwiceGivesTheFirst) {
  const PodSpec spec = spec_of(0);
  const PodRef first = create(spec);
  const auto second = cluster().create_pod(spec);
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(second->outcome, CreateReply::Outcome::kExists);
  EXPECT_EQ(second->uid, first.uid);
  ASSERT_TRUE(runs(first));
  EXPECT_EQ(look().pods.size(), 1u);
}

TEST_P(ClusterConformance, ANameHeldByAnotherJobsPodIsAConflict) {
  const PodSpec spec = spec_of(0);
  create(spec);
  PodSpec foreign = spec;
  foreign.job_uid = "another-job";
  const auto reply = cluster().create_pod(foreign);
  ASSERT_TRUE(reply.has_value());
  EXPECT_EQ(reply->outcome, CreateReply::Outcome::kNameConflict);
  EXPECT_EQ(reply->owner_uid, spec.job_uid);
}

TEST_P(ClusterConformance, NamesAreTheSameForTheSamePodOnly) {
  std::set<std::string> names;
  for (int index = 0; index < 3; ++index) {
    for (int64_t generation = 1; generation < 4; ++generation) {
      const std::string name = spec_of(index, generation).name;
      EXPECT_EQ(name, spec_of(index, generation).name);
      EXPECT_TRUE(names.insert(name).second) << name;
    }
  }
}

TEST_P(ClusterConformance, ExitZeroSucceedsAndAnyOtherFailsWithItsCode) {
  const PodSpec good = spec_of(0);
  const PodSpec bad = spec_of(1);
  const PodRef good_ref = create(good);
  const PodRef bad_ref = create(bad);
  ASSERT_TRUE(runs(good_ref));
  ASSERT_TRUE(runs(bad_ref));
  world_->finish_pod(good.name, 0);
  world_->finish_pod(bad.name, 70);
  ASSERT_TRUE(eventually([&](const Observed& observed) {
    const auto* pod = pod_in(observed, good_ref.uid);
    return pod != nullptr && pod->phase == PodPhase::kSucceeded;
  }));
  ASSERT_TRUE(eventually([&](const Observed& observed) {
    const auto* pod = pod_in(observed, bad_ref.uid);
    return pod != nullptr && pod->phase == PodPhase::kFailed;
  }));
  const Observed observed = look();
  const ObservedPod* failed = pod_in(observed, bad_ref.uid);
  ASSERT_TRUE(failed->exit.has_value());
  EXPECT_EQ(failed->exit->exit_code, 70);
  EXPECT_FALSE(failed->ready);
}

TEST_P(ClusterConformance, ADeletedPodIsTerminatingUntilItIsGone) {
  const PodRef ref = create(spec_of(0));
  ASSERT_TRUE(runs(ref));
  ASSERT_TRUE(cluster().delete_pod(ref, kGrace).has_value());
  const Observed observed = look();
  if (const ObservedPod* pod = pod_in(observed, ref.uid)) {
    EXPECT_TRUE(pod->terminating);
    EXPECT_FALSE(pod->exit.has_value());
  }
  EXPECT_TRUE(is_gone(ref));
}

TEST_P(ClusterConformance, DeletingTwiceIsTheSameAsOnce) {
  const PodRef ref = create(spec_of(0));
  ASSERT_TRUE(runs(ref));
  ASSERT_TRUE(cluster().delete_pod(ref, kGrace).has_value());
  const Status again = cluster().delete_pod(ref, kGrace);
  EXPECT_TRUE(again.has_value() || again.error().code == ErrorCode::kNotFound);
  EXPECT_TRUE(is_gone(ref));
}

TEST_P(ClusterConformance, DeletingAFinishedPodTakesItAway) {
  const PodSpec spec = spec_of(0);
  const PodRef ref = create(spec);
  ASSERT_TRUE(runs(ref));
  world_->finish_pod(spec.name, 3);
  ASSERT_TRUE(eventually([&](const Observed& observed) {
    const auto* pod = pod_in(observed, ref.uid);
    return pod != nullptr && pod->phase == PodPhase::kFailed;
  }));
  ASSERT_TRUE(cluster().delete_pod(ref, kGrace).has_value());
  EXPECT_TRUE(is_gone(ref));
}

TEST_P(ClusterConformance, AUidPreconditionGuardsTheSuccessorOfTheSameName) {
  const PodSpec spec = spec_of(0);
  const PodRef first = create(spec);
  ASSERT_TRUE(runs(first));
  ASSERT_TRUE(cluster().delete_pod(first, kNoGrace).has_value());
  ASSERT_TRUE(is_gone(first));
  PodRef second = create(spec);
  // Fake kubelets end pods by name: one that is late with the first takes the second away.
  ASSERT_TRUE(eventually([&](const Observed& observed) {
    const auto there = cluster().create_pod(spec);
    if (there) second.uid = there->uid;
    const ObservedPod* pod = pod_in(observed, second.uid);
    return pod != nullptr && pod->phase == PodPhase::kRunning;
  }));
  ASSERT_NE(second.uid, first.uid);
  for (const Status& refused :
       {cluster().delete_pod(first, kNoGrace), cluster().remove_member_label(first)}) {
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code, ErrorCode::kConflict);
  }
  ASSERT_TRUE(runs(second));
  EXPECT_TRUE(pod_in(look(), second.uid)->member);
}

TEST_P(ClusterConformance, ChangingAPodThatIsGoneIsNotFound) {
  const PodRef nobody{"default", "job-0-aaaaa", "no-uid"};
  for (const Status& refused :
       {cluster().delete_pod(nobody, kNoGrace), cluster().remove_member_label(nobody)}) {
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code, ErrorCode::kNotFound);
  }
}

TEST_P(ClusterConformance, ThePodWithoutItsMemberLabelRunsOn) {
  const PodRef ref = create(spec_of(0));
  ASSERT_TRUE(runs(ref));
  ASSERT_TRUE(cluster().remove_member_label(ref).has_value());
  ASSERT_TRUE(cluster().remove_member_label(ref).has_value());
  EXPECT_TRUE(eventually([&](const Observed& observed) {
    const auto* pod = pod_in(observed, ref.uid);
    return pod != nullptr && !pod->member && pod->phase == PodPhase::kRunning;
  }));
}

TEST_P(ClusterConformance, ASpareIsNoMemberUntilItIsPromoted) {
  const Observed before = look();
  const PodSpec spec = control::make_spare_spec(before.metadata, before.spec, 4, 1, 2);
  const PodRef ref = create(spec);
  ASSERT_TRUE(runs(ref));
  const Observed observed = look();
  const ObservedPod* parked = pod_in(observed, ref.uid);
  ASSERT_NE(parked, nullptr);
  EXPECT_EQ(parked->spare, 4);
  EXPECT_EQ(parked->node_index, -1);
  EXPECT_FALSE(parked->member);
  ASSERT_TRUE(cluster().promote_pod(ref, 1).has_value());
  ASSERT_TRUE(cluster().promote_pod(ref, 1).has_value());
  EXPECT_TRUE(eventually([&](const Observed& now) {
    const auto* pod = pod_in(now, ref.uid);
    return pod != nullptr && pod->member && pod->node_index == 1 && pod->spare == 4;
  }));
  ASSERT_TRUE(cluster().remove_member_label(ref).has_value());
  ASSERT_TRUE(cluster().promote_pod(ref, 1).has_value()) << "whoever is late brings nothing back";
  Observed now = look();
  auto listed = cluster().list_pods(now);  // not amended by what was written
  ASSERT_TRUE(listed.has_value());
  now.pods = *std::move(listed);
  const ObservedPod* condemned = pod_in(now, ref.uid);
  ASSERT_NE(condemned, nullptr);
  EXPECT_FALSE(condemned->member);
  EXPECT_EQ(condemned->node_index, 1);
}

TEST_P(ClusterConformance, TheListenerHearsOfAnEndAndFallsSilentWhenRemoved) {
  std::atomic<int> calls = 0;
  const PodSpec spec = spec_of(0);
  const PodRef ref = create(spec);
  ASSERT_TRUE(runs(ref));
  cluster().set_listener([&](const control::JobKey& changed) {
    EXPECT_EQ(changed, key());
    ++calls;
  });
  const int before = calls;
  world_->finish_pod(spec.name, 0);
  EXPECT_TRUE(eventually([&](const Observed&) { return calls > before; }));
  cluster().set_listener({});
  const int silent = calls;
  const PodRef other = create(spec_of(1));
  ASSERT_TRUE(runs(other));
  EXPECT_EQ(calls, silent);
}

TEST_P(ClusterConformance, ADeletedJobIsNotFound) {
  const Observed observed = look();
  const Status refused = cluster().delete_job(key(), "another-uid");
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kConflict);
  ASSERT_TRUE(cluster().delete_job(key(), observed.metadata.uid).has_value());
  const auto gone = cluster().observe(key());
  ASSERT_FALSE(gone.has_value());
  EXPECT_EQ(gone.error().code, ErrorCode::kNotFound);
}

}  // namespace trainyard::testing_support

// Pods that stand ready: when they are made, whose index they take, and what is told of them.
#include <array>
#include <chrono>
#include <csignal>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "control/pod_spec.h"
#include "tests/support/reporting_job.h"

namespace trainyard::control {
namespace {

using api::ConditionType;
using std::chrono::seconds;
using testing::ElementsAre;
using testing_support::kBackoffOver;
using testing_support::MemoryCluster;
using testing_support::ReportingJob;

constexpr seconds kRefill{30};

api::TrainingJob job_of(int64_t nodes, int64_t spares) {
  api::TrainingJob job = testing_support::make_job(nodes);
  job.spec.failure_policy.restart_strategy = api::RestartStrategy::kInPlace;
  job.spec.failure_policy.backoff = {seconds(1), seconds(2)};
  job.spec.num_proc_per_node = 2;
  job.spec.spares.count = spares;
  return job;
}

/// A job whose agents stay, with spares whose agents wait; the test plays the coordinator.
class SpareJob : public ReportingJob {
 public:
  explicit SpareJob(int64_t nodes, int64_t spares) : ReportingJob(job_of(nodes, spares)) {
    carry_out();
    EXPECT_TRUE(settle());
    carry_out();
  }

  /// The order has been carried out: ranks of the status' generation run, and spares wait.
  void carry_out() {
    connect();
    for (MemberFact& fact : facts.now.members)
      fact.stays = fact.says_joined = true;
    facts.now.spares.clear();
    for (const ObservedPod& pod : parked()) {
      MemberFact fact;
      fact.pod_uid = pod.uid;
      fact.pod_name = pod.name;
      fact.generation = pod.created_generation;
      fact.connected = true;
      fact.stays = fact.says_joined = true;
      facts.now.spares.push_back(fact);
    }
  }

  std::vector<ObservedPod> parked() const {
    const Observed truth = cluster.truth();
    const PodSets sets = sort_pods(truth.pods, truth.spec, truth.status);
    std::vector<ObservedPod> pods;
    for (const ObservedPod* pod : sets.parked)
      pods.push_back(*pod);
    return pods;
  }

  /// Fails the pods in one moment.
  void lose(std::initializer_list<int> indexes) {
    ContainerExit exit;
    exit.exit_code = 128 + SIGKILL;
    std::vector<std::string> names;
    for (const int index : indexes)
      names.push_back(member(index).name);
    cluster.finish_pods(names, exit);
  }

  int64_t creations() const {
    int64_t found = 0;
    for (const MemoryCluster::Write& write : cluster.writes())
      found += write.kind == MemoryCluster::Write::Kind::kCreate ? 1 : 0;
    return found;
  }
  int64_t events(const std::string& reason) const {
    int64_t found = 0;
    for (const MemoryCluster::Write& write : cluster.writes())
      found += write.kind == MemoryCluster::Write::Kind::kEvent && write.what == reason ? 1 : 0;
    return found;
  }
};

/// As where several nodes lose their power: the cluster deletes their pods one after the other.
TEST(SparesTest, PodsThatAreDeletedWithTheirNodesAreOneRestart) {
  SpareJob job(2, 1);
  job.step_to(1);
  ASSERT_TRUE(job.settle());
  const std::array<std::string, 2> lost = {job.member(0).name, job.member(1).name};
  for (const int index : {0, 1}) {
    job.disconnect(index);
    job.cluster.lose_node(lost[static_cast<size_t>(index)]);
  }
  ASSERT_TRUE(job.pass(seconds(10)));
  job.cluster.delete_from_outside(lost[0]);
  ASSERT_TRUE(job.pass(seconds(10)));
  EXPECT_EQ(job.status().restarts.total, 0) << "the other node's pod may follow";
  job.cluster.delete_from_outside(lost[1]);
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.status().restarts.total, 1);
  EXPECT_EQ(job.status().restarts.promotions, 1);
  EXPECT_EQ(job.status().restarts.pod_replacements, 2);
}

TEST(SparesTest, APodThatIsDeletedWithItsNodeIsAwaitedByNobodyAfterTheTruce) {
  SpareJob job(2, 1);
  job.step_to(1);
  ASSERT_TRUE(job.settle());
  job.disconnect(0);
  job.disconnect(1);
  const std::string lost = job.member(0).name;
  job.cluster.lose_node(lost);
  job.cluster.delete_from_outside(lost);
  ASSERT_TRUE(job.pass(seconds(59)));
  EXPECT_EQ(job.status().restarts.total, 0) << "more than half are silent";
  ASSERT_TRUE(job.pass(seconds(1)));
  EXPECT_EQ(job.status().restarts.total, 1);
}

TEST(SparesTest, TheyAreMadeOnceTheGangRuns) {
  ReportingJob job(job_of(2, 2));
  job.facts.now = {};
  const auto status = job.status();
  ASSERT_TRUE(status.spares);
  EXPECT_THAT(status.spares->parked, ElementsAre(1, 2));
  EXPECT_EQ(status.nodes.spare, 2);
  EXPECT_EQ(status.nodes.target, 2);
  EXPECT_EQ(status.nodes.active, 2) << "a spare is no member";
  EXPECT_EQ(status.membership.generation, 1);
  std::vector<std::string> created;
  for (const MemoryCluster::Write& write : job.cluster.writes())
    if (write.kind == MemoryCluster::Write::Kind::kCreate) created.push_back(write.what);
  EXPECT_THAT(created,
              ElementsAre(pod_name("job", "job-uid-1", 0, 1), pod_name("job", "job-uid-1", 1, 1),
                          spare_name("job", "job-uid-1", 1), spare_name("job", "job-uid-1", 2)));
}

TEST(SparesTest, OneTakesTheIndexOfALostPod) {
  SpareJob job(3, 1);
  const ObservedPod spare = job.parked().at(0);
  const ObservedPod first = job.member(0);
  job.lose({1});
  ASSERT_TRUE(job.settle());
  const auto status = job.status();
  EXPECT_EQ(status.membership.generation, 2);
  EXPECT_EQ(status.restarts.promotions, 1);
  EXPECT_EQ(status.restarts.pod_replacements, 1);
  EXPECT_EQ(job.member(1).uid, spare.uid);
  EXPECT_EQ(job.member(0).uid, first.uid) << "the others go on";
  EXPECT_TRUE(job.is(ConditionType::kScheduled)) << "no pod is waited for";
  EXPECT_EQ(job.events("SparePromoted"), 1);
  EXPECT_EQ(job.creations(), 4);
  EXPECT_EQ(job.cluster.unannounced(), 0);
  for (const ObservedPod& pod : job.cluster.truth().pods) {
    if (pod.uid != spare.uid) continue;
    EXPECT_TRUE(pod.member);
    EXPECT_EQ(pod.node_index, 1);
  }
}

TEST(SparesTest, TwoLossesAndOneSpareAreOneGeneration) {
  SpareJob job(3, 1);
  const ObservedPod spare = job.parked().at(0);
  job.lose({0, 2});
  ASSERT_TRUE(job.pass(kBackoffOver));
  const auto status = job.status();
  EXPECT_EQ(status.membership.generation, 2);
  EXPECT_EQ(status.restarts.promotions, 1);
  EXPECT_EQ(status.restarts.pod_replacements, 2);
  EXPECT_EQ(job.member(0).uid, spare.uid);
  EXPECT_EQ(job.member(2).created_generation, 2);
}

TEST(SparesTest, EachLossTakesAnother) {
  SpareJob job(3, 2);
  job.lose({0, 2});
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.status().restarts.promotions, 2);
  std::set<std::string> uids;
  for (int index = 0; index < 3; ++index)
    uids.insert(job.member(index).uid);
  EXPECT_EQ(uids.size(), 3u);
  EXPECT_EQ(job.creations(), 5);
}

TEST(SparesTest, OnesWhoseAgentIsSilentAreNot) {
  SpareJob job(2, 1);
  job.facts.now.spares.at(0).connected = false;
  job.lose({1});
  ASSERT_TRUE(job.pass(kBackoffOver));
  EXPECT_EQ(job.status().restarts.promotions, 0);
  EXPECT_EQ(job.member(1).created_generation, 2);
}

/// It would be fenced as soon as it was promoted.
TEST(SparesTest, OneOfTheVersionBeforeIsNot) {
  SpareJob job(1, 1);
  job.facts.now.spares.at(0).says_joined = false;
  job.lose({0});
  ASSERT_TRUE(job.pass(kBackoffOver));
  EXPECT_EQ(job.status().restarts.promotions, 0);
  EXPECT_EQ(job.member(0).created_generation, 2);
}

/// Whoever began it dies at each of its writes, once before it and once after.
TEST(SparesTest, ANewLeaderFinishesAPromotion) {
  for (const auto point : {MemoryCluster::CrashPoint::kBefore, MemoryCluster::CrashPoint::kAfter}) {
    for (int64_t write = 0; write < 6; ++write) {
      SpareJob job(3, 1);
      const ObservedPod spare = job.parked().at(0);
      job.lose({1});
      job.cluster.crash_at(write, point);
      ASSERT_TRUE(job.settle());
      EXPECT_EQ(job.status().membership.generation, 2) << write;
      EXPECT_EQ(job.status().restarts.promotions, 1) << write;
      EXPECT_EQ(job.member(1).uid, spare.uid) << write;
      EXPECT_TRUE(job.member(1).member) << write;
      EXPECT_EQ(job.cluster.unannounced(), 0) << write;
      EXPECT_EQ(job.creations(), 4) << write;
    }
  }
}

TEST(SparesTest, OneThatIsLostAsItIsPromotedIsALossOfItsIndex) {
  SpareJob job(2, 2);
  job.lose({1});
  ASSERT_TRUE(job.settle());
  const std::string first = job.member(1).uid;
  job.carry_out();
  job.lose({1});
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.status().membership.generation, 3);
  EXPECT_EQ(job.status().restarts.promotions, 2);
  EXPECT_NE(job.member(1).uid, first);
  ASSERT_EQ(job.status().membership.promoted.size(), 1u) << "the first is no member any more";
}

TEST(SparesTest, AMemberThatWasASpareStaysThroughARestartInPlace) {
  SpareJob job(2, 1);
  job.lose({1});
  ASSERT_TRUE(job.settle());
  const ObservedPod promoted = job.member(1);
  job.carry_out();
  ContainerExit exit;
  exit.exit_code = 128 + SIGKILL;
  exit.signal = SIGKILL;
  exit.rank = 0;
  exit.finished_at = job.clock.now();
  job.facts.now.members.at(0).failure = exit;
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.status().membership.generation, 3);
  EXPECT_EQ(job.status().restarts.in_place, 1);
  EXPECT_EQ(job.member(1).uid, promoted.uid);
}

TEST(SparesTest, UsedOnesAreReplacedAfterAWhile) {
  SpareJob job(2, 1);
  job.lose({1});
  ASSERT_TRUE(job.settle());
  EXPECT_TRUE(job.parked().empty());
  job.carry_out();
  ASSERT_TRUE(job.pass(seconds(2)));
  EXPECT_TRUE(job.is(ConditionType::kRunning));
  EXPECT_TRUE(job.is(ConditionType::kDegraded));
  EXPECT_EQ(job.reason_of(ConditionType::kDegraded), api::reason::kSparesExhausted);
  ASSERT_TRUE(job.pass(kRefill));
  ASSERT_EQ(job.parked().size(), 1u);
  EXPECT_EQ(job.parked()[0].spare, 2);
  EXPECT_FALSE(job.is(ConditionType::kDegraded));
  EXPECT_EQ(job.status().nodes.spare, 1);
}

TEST(SparesTest, OneThatIsLostIsNoLossOfTheJob) {
  SpareJob job(2, 1);
  const std::string name = job.parked().at(0).name;
  ContainerExit exit;
  exit.exit_code = 1;
  job.cluster.finish_pod(name, exit);
  ASSERT_TRUE(job.pass(kRefill));
  EXPECT_EQ(job.status().restarts.total, 0);
  EXPECT_EQ(job.status().membership.generation, 1);
  ASSERT_EQ(job.parked().size(), 1u);
  EXPECT_NE(job.parked()[0].name, name);
}

TEST(SparesTest, WhereTheClusterTakesNoneTheJobGoesOn) {
  api::TrainingJob manifest = job_of(2, 1);
  testing_support::JobDriver job(std::move(manifest));
  job.cluster.set_quota(2);
  ASSERT_TRUE(job.pass(seconds(61)));
  EXPECT_TRUE(job.is(ConditionType::kAccepted));
  EXPECT_TRUE(job.is(ConditionType::kRunning));
  EXPECT_EQ(job.reason_of(ConditionType::kDegraded), api::reason::kSparesExhausted);
  EXPECT_EQ(job.last.requeue_after, seconds(10)) << "it is asked again";
  EXPECT_FALSE(job.last.refused) << "no pod of the gang was";
  job.cluster.set_quota(3);
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.status().nodes.spare, 1);
}

TEST(SparesTest, TheyGoWithTheJob) {
  SpareJob job(2, 1);
  job.cluster.edit_spec([](api::TrainingJobSpec& spec) { spec.suspend = true; });
  ASSERT_TRUE(job.settle());
  EXPECT_TRUE(job.is(ConditionType::kSuspended));
  EXPECT_TRUE(job.cluster.truth().pods.empty());
  job.cluster.edit_spec([](api::TrainingJobSpec& spec) { spec.suspend = false; });
  job.facts.now = {};
  ASSERT_TRUE(job.pass(kRefill));
  EXPECT_EQ(job.parked().size(), 1u);
}

TEST(SparesTest, AJobIsCompleteWithoutThem) {
  SpareJob job(2, 1);
  job.cluster.finish_pods({job.member(0).name, job.member(1).name}, ContainerExit());
  ASSERT_TRUE(job.settle());
  EXPECT_TRUE(job.is(ConditionType::kComplete));
  for (const ObservedPod& pod : job.cluster.truth().pods)
    EXPECT_FALSE(pod.spare) << pod.name;
}

TEST(SparesTest, ARestartOfAllPodsMakesThemAnew) {
  SpareJob job(2, 1);
  const std::string name = job.parked().at(0).name;
  job.cluster.edit_spec([](api::TrainingJobSpec& spec) { spec.rendezvous.port = 29501; });
  job.lose({1});
  ASSERT_TRUE(job.pass(kBackoffOver));
  EXPECT_EQ(job.status().restarts.promotions, 0) << "it was made from what is no more wanted";
  job.facts.now = {};
  ASSERT_TRUE(job.pass(kRefill));
  ASSERT_EQ(job.parked().size(), 1u);
  EXPECT_NE(job.parked()[0].name, name);
}

}  // namespace
}  // namespace trainyard::control

#include "tests/support/invariants.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trainyard::testing_support {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using Json = nlohmann::json;

constexpr char kOperator[] = "operator";

/// A log in the making: job "u" of the name "j".
class Log {
 public:
  Log& add(const std::string& user, const std::string& verb, const std::string& resource,
           const std::string& name, Json answer) {
    AuditEvent event;
    event.time = time_of(events_.size());
    event.user = user;
    event.verb = verb;
    event.resource = resource;
    event.name_space = std::string("n");
    event.name = name;
    event.code = verb == "create" ? 201 : 200;
    event.request = Json{{"metadata", {{"uid", "x"}, {"resourceVersion", "1"}}},
                         {"preconditions", {{"uid", "x"}}}};
    event.answer = std::move(answer);
    events_.push_back(std::move(event));
    return *this;
  }
  Log& job() { return add("user", "create", "trainingjobs", "j", job_object(Json::object())); }
  Log& status(const Json& status) {
    return add(kOperator, "update", "trainingjobs/status", "j", job_object(status));
  }
  Log& generation(int64_t generation, int64_t restarts, const Json& more = Json::object()) {
    Json status = {{"observedGeneration", 1},
                   {"membership", {{"generation", generation}}},
                   {"restarts", {{"total", restarts}}}};
    status.merge_patch(more);
    return this->status(status);
  }
  Log& pod(const std::string& user, const std::string& verb, const std::string& name,
           int64_t generation, const std::string& phase = "Running", bool member = true) {
    Json object = pod_object(name, generation, member);
    object["status"] = {{"phase", phase}};
    return add(user, verb, verb == "update" ? "pods/status" : "pods", name, std::move(object));
  }
  /// The kubelet tells how a pod's container has ended.
  Log& ended(const std::string& name, int64_t generation, int exit_code) {
    Json object = pod_object(name, generation, /*member=*/false);
    const Json state = {{"terminated", {{"exitCode", exit_code}}}};
    object["status"] = {
        {"phase", exit_code == 0 ? "Succeeded" : "Failed"},
        {"containerStatuses", Json::array({{{"name", "trainer"}, {"state", state}}})}};
    return add("kubelet", "update", "pods/status", name, std::move(object));
  }
  static Json pod_object(const std::string& name, int64_t generation, bool member = true) {
    Json labels = {{"trainyard.dev/job-uid", "u"},
                   {"trainyard.dev/node-index", "0"},
                   {"trainyard.dev/created-generation", std::to_string(generation)}};
    if (member) labels["trainyard.dev/member"] = "true";
    return {{"metadata",
             {{"name", name},
              {"uid", name},
              {"labels", labels},
              {"annotations", {{"trainyard.dev/trainer-container", "trainer"}}},
              {"ownerReferences", Json::array({{{"uid", "u"}}})}}}};
  }
  /// Of the newest entry.
  AuditEvent& last() { return events_.back(); }
  /// What is there at rest.
  Json remaining = {{"items", Json::array()}};
  Json jobs = {{"items", Json::array()}};
  std::vector<std::string> judged(bool late_writers = false, bool late_views = false) const {
    Case made;
    made.events = &events_;
    made.operator_user = kOperator;
    made.late_writers = late_writers;
    made.late_views = late_views;
    made.remaining = remaining;
    made.jobs = jobs;
    return invariant_violations(made);
  }
  static Json job_object(const Json& status) {
    return {
        {"metadata", {{"name", "j"}, {"uid", "u"}}}, {"spec", Json::object()}, {"status", status}};
  }

 private:
  static std::string time_of(size_t index) { return std::string(index, 't'); }
  std::vector<AuditEvent> events_;
};

/// The job, deleted in the foreground.
Json leaving_job() {
  return {{"metadata",
           {{"name", "j"},
            {"uid", "u"},
            {"deletionTimestamp", "t"},
            {"finalizers", Json::array({"foregroundDeletion"})}}},
          {"status", {{"membership", {{"generation", 1}}}}}};
}

/// A job whose pod fails and is replaced, written ahead.
Log restarted() {
  Log log;
  log.job().generation(1, 0).pod(kOperator, "create", "j-0-a", 1);
  log.pod("kubelet", "update", "j-0-a", 1, "Failed").generation(2, 1);
  log.pod(kOperator, "patch", "j-0-a", 1, "Failed", false);
  log.pod(kOperator, "delete", "j-0-a", 1, "Failed", false);
  log.pod(kOperator, "create", "j-0-b", 2);
  return log;
}

TEST(InvariantsTest, ARestartWrittenAheadIsWell) { EXPECT_THAT(restarted().judged(), IsEmpty()); }

TEST(InvariantsTest, APodIsLostWithItsEvictionNotWithItsEnd) {
  Log log;
  log.job().generation(1, 0).pod(kOperator, "create", "j-0-a", 1);
  log.add("user", "create", "pods/eviction", "j-0-a", Json());
  log.generation(2, 1);
  log.pod("kubelet", "delete", "j-0-a", 1);
  EXPECT_THAT(log.judged(), IsEmpty());
  EXPECT_THAT(log.generation(3, 2).judged(), Contains(HasSubstr("2 restarts are counted of 1")));
}

TEST(InvariantsTest, ARestartThatIsCountedTwiceIsSeen) {
  Log log = restarted();
  log.generation(3, 2);
  EXPECT_THAT(log.judged(), Contains(HasSubstr("2 restarts are counted of 1")));
}

/// A job that is restarted for the end of a rank of which the agent told before the kubelet did;
/// then its container ends so.
Log told_by_an_agent(std::optional<int> exit_code) {
  Log log;
  log.job().generation(1, 0).pod(kOperator, "create", "j-0-a", 1);
  const Json attempt = {{"generation", 1},   {"endTime", "t"}, {"podName", "j-0-a"},
                        {"podUID", "j-0-a"}, {"rank", 3},      {"exitCode", 137}};
  log.generation(2, 1, {{"attempts", Json::array({attempt})}});
  log.pod(kOperator, "delete", "j-0-a", 1, "Running", false);
  if (exit_code) log.ended("j-0-a", 1, *exit_code);
  return log;
}

TEST(InvariantsTest, ARestartForARankWhosePodEndsSoIsWell) {
  EXPECT_THAT(told_by_an_agent(137).judged(), IsEmpty());
}

TEST(InvariantsTest, APodThatEndsOtherwiseThanItsAgentToldIsSeen) {
  EXPECT_THAT(told_by_an_agent(0).judged(), Contains(HasSubstr("j-0-a ended with 0")));
  EXPECT_THAT(told_by_an_agent(143).judged(), Contains(HasSubstr("j-0-a ended with 143")));
  EXPECT_THAT(told_by_an_agent({}).judged(), IsEmpty()) << "its node has gone";
}

TEST(InvariantsTest, ARestartInPlaceIsOneLossAndEndsNoPod) {
  const auto restarted_in_place = [](int64_t restarts) {
    Log log;
    log.job().generation(1, 0).pod(kOperator, "create", "j-0-a", 1);
    const Json attempt = {{"generation", 1}, {"endTime", "t"},  {"podName", "j-0-a"},
                          {"rank", 3},       {"exitCode", 137}, {"inPlace", true}};
    log.generation(2, restarts, {{"attempts", Json::array({attempt})}});
    return log.ended("j-0-a", 1, 0).judged();
  };
  EXPECT_THAT(restarted_in_place(1), IsEmpty());
  EXPECT_THAT(restarted_in_place(2), Contains(HasSubstr("2 restarts are counted of 1")));
}

TEST(InvariantsTest, ARestartForARankCountsOnce) {
  Log log = told_by_an_agent(137);
  log.generation(3, 2);
  EXPECT_THAT(log.judged(), Contains(HasSubstr("2 restarts are counted of 1")));
}

TEST(InvariantsTest, ARestartForANodeThatHasCompletedIsSeen) {
  const auto deleted_and_restarted = [](const char* completed) {
    Log log;
    log.job().generation(1, 0).pod(kOperator, "create", "j-0-a", 1);
    log.pod("kubelet", "update", "j-0-a", 1, "Succeeded");
    log.generation(1, 0, {{"completedIndexes", completed}});
    log.pod("user", "delete", "j-0-a", 1, "Succeeded").generation(2, 1);
    return log.judged();
  };
  EXPECT_THAT(deleted_and_restarted(""), IsEmpty());
  EXPECT_THAT(deleted_and_restarted("1-3,7"), IsEmpty());
  for (const char* completed : {"0", "0-3", "0,2"})
    EXPECT_THAT(deleted_and_restarted(completed),
                Contains(HasSubstr("1 restarts are counted of 0")));
}

TEST(InvariantsTest, AnEffectBeforeItsStatusIsSeen) {
  Log made;
  made.job().pod(kOperator, "create", "j-0-a", 1);
  EXPECT_THAT(made.judged(), Contains(HasSubstr("before it was written down")));
  Log condemned;
  condemned.job().generation(1, 0).pod(kOperator, "create", "j-0-a", 1);
  condemned.pod(kOperator, "delete", "j-0-a", 1);
  EXPECT_THAT(condemned.judged(), Contains(HasSubstr("which the status does not say")));
}

TEST(InvariantsTest, AGangOfTwoConfigurationsIsSeen) {
  const auto gang_of = [](const char* first, const char* second) {
    Log log;
    log.job().generation(1, 0);
    for (const auto& [index, port] : {std::pair("0", first), std::pair("1", second)}) {
      log.pod(kOperator, "create", std::string("j-") + index, 1);
      Json answer = log.last().answer.get();
      answer["metadata"]["labels"]["trainyard.dev/node-index"] = index;
      const Json variable = {{"name", "MASTER_PORT"}, {"value", port}};
      answer["spec"]["containers"] = Json::array({{{"env", Json::array({variable})}}});
      log.last().answer = std::move(answer);
    }
    return log.judged();
  };
  EXPECT_THAT(gang_of("29500", "29500"), IsEmpty());
  EXPECT_THAT(gang_of("29500", "29501"), Contains(HasSubstr("S6")));
}

TEST(InvariantsTest, AGenerationWithoutAReasonIsSeen) {
  Log log;
  log.job().generation(1, 0).generation(2, 0);
  EXPECT_THAT(log.judged(),
              Contains(HasSubstr("without its restart, resize, release of nodes or start")));
}

TEST(InvariantsTest, AStatusThatGoesBackIsSeen) {
  Log log = restarted();
  log.generation(1, 0);
  EXPECT_THAT(log.judged(), Contains(HasSubstr("generation -1")));
  const Json complete = {{"conditions", {{{"type", "Complete"}, {"status", "True"}}}}};
  Log ended;
  ended.job().generation(1, 0, complete).generation(1, 0);
  EXPECT_THAT(ended.judged(), Contains(HasSubstr("Complete was taken back")));
}

TEST(InvariantsTest, AnEndBeforeItsPodsHaveEndedIsSeen) {
  Log log;
  log.job().generation(1, 0).pod(kOperator, "create", "j-0-a", 1);
  log.generation(1, 0, {{"conditions", {{{"type", "Failed"}, {"status", "True"}}}}});
  EXPECT_THAT(log.judged(), Contains(HasSubstr("Failed though pods still run")));
}

TEST(InvariantsTest, APodWhoseTrainerHasExitedRunsNoMore) {
  Log log;
  log.job().generation(1, 0).pod(kOperator, "create", "j-0-a", 1);
  log.pod("kubelet", "update", "j-0-a", 1, "Running");
  Json ended = log.last().answer;
  ended["status"]["containerStatuses"] = {
      {{"name", "sidecar"}, {"state", {{"running", Json::object()}}}},
      {{"name", "trainer"}, {"state", {{"terminated", {{"exitCode", 7}}}}}}};
  log.last().answer = ended;
  EXPECT_THAT(log.generation(2, 1).judged(), IsEmpty()) << "a pod that was lost";
}

TEST(InvariantsTest, AHangLosesNoPod) {
  Log log;
  log.job().generation(1, 0).generation(
      2, 1, {{"restarts", {{"classes", {{{"class", "Hang"}, {"total", 1}}}}}}});
  EXPECT_THAT(log.judged(), IsEmpty());
}

TEST(InvariantsTest, AStatusThatOthersWriteIsNotTheOperators) {
  Log log;
  log.job().generation(1, 0).generation(2, 40);
  log.last().user = "admin";
  log.pod(kOperator, "create", "j-0-a", 2).pod("kubelet", "update", "j-0-a", 2, "Failed");
  EXPECT_THAT(log.generation(3, 41).judged(), IsEmpty());
  EXPECT_THAT(log.generation(4, 42).judged(), Contains(HasSubstr("42 restarts are counted of 41")));
}

TEST(InvariantsTest, TwoMembersOfOneIndexAreSeen) {
  Log log;
  log.job().generation(1, 0).pod(kOperator, "create", "j-0-a", 1);
  log.pod(kOperator, "create", "j-0-b", 1);
  EXPECT_THAT(log.judged(), Contains(HasSubstr("S1: pod j-0-b was made while j-0-a was a member")));
}

Json takes_off(const char* name) {
  return {{"metadata", {{"uid", "x"}, {"labels", {{name, nullptr}}}}}};
}

TEST(InvariantsTest, WhetherAPodWasAMemberWhoseLabelWasTakenOffUnansweredIsNotJudged) {
  Log log;
  log.job().generation(1, 0).pod(kOperator, "create", "j-0-a", 1);
  log.pod("kubelet", "update", "j-0-a", 1, "Failed").generation(2, 1);
  log.add(kOperator, "patch", "pods", "j-0-a", {{"kind", "Status"}}).last().code = 504;
  Log cut = log;
  cut.last().request = takes_off("trainyard.dev/member");
  EXPECT_THAT(cut.pod(kOperator, "create", "j-0-b", 2).judged(), IsEmpty());
  log.last().request = takes_off("of-something-else");
  EXPECT_THAT(log.pod(kOperator, "create", "j-0-b", 2).judged(), Contains(HasSubstr("S1: pod")));
}

TEST(InvariantsTest, APodThatIsMadeAgainIsSeen) {
  Log log = restarted();
  log.pod(kOperator, "create", "j-0-a", 2);
  EXPECT_THAT(log.judged(), Contains(HasSubstr("S4: pod j-0-a was made again")));
}

TEST(InvariantsTest, APodWithoutItsJobIsSeen) {
  Log late;
  late.job().generation(1, 0);
  late.add("user", "delete", "trainingjobs", "j",
           {{"kind", "Status"}, {"details", {{"uid", "u"}}}});
  EXPECT_THAT(late.pod(kOperator, "create", "j-0-a", 1).judged(),
              Contains(HasSubstr("S2: pod j-0-a was made for a job that is gone")));
  Log strange;
  strange.job().generation(1, 0).pod(kOperator, "create", "j-0-a", 1);
  Json owned_by_none = strange.last().answer;
  owned_by_none["metadata"].erase("ownerReferences");
  strange.last().answer = owned_by_none;
  EXPECT_THAT(strange.judged(), Contains(HasSubstr("has not its job as its owner")));
}

TEST(InvariantsTest, AnOrphanAtRestIsSeen) {
  Log log;
  log.remaining["items"].push_back(Log::pod_object("j-0-a", 1));
  EXPECT_THAT(log.judged(), Contains(HasSubstr("S2: at rest pod j-0-a is left")));
  log.jobs["items"].push_back({{"metadata", {{"uid", "u"}}}});
  EXPECT_THAT(log.judged(), IsEmpty());
  log.remaining["items"].push_back(Log::pod_object("j-0-b", 1));
  EXPECT_THAT(log.judged(), Contains(HasSubstr("S1: at rest")));
}

TEST(InvariantsTest, GenerationsGoOnFromWhatSomebodyTookOutOfTheStatus) {
  const auto emptied = [] {
    Log log;
    log.job().generation(1, 0).generation(2, 0, {{"restarts", {{"resizes", 1}}}});
    return log.add("user", "patch", "trainingjobs/status", "j", Log::job_object(Json::object()));
  };
  EXPECT_THAT(emptied().generation(3, 0).judged(), IsEmpty());
  EXPECT_THAT(emptied().status(Json::object()).generation(3, 0).judged(), IsEmpty());
  EXPECT_THAT(emptied().generation(1, 0).judged(), Contains(HasSubstr("S5: generation -1")));
  EXPECT_THAT(emptied().generation(4, 0).judged(), Contains(HasSubstr("S5: generation 2")));
  EXPECT_THAT(emptied().generation(3, 0).generation(4, 0).judged(),
              Contains(HasSubstr("without its restart")));
}

TEST(InvariantsTest, ANamespaceThatGoesTakesItsPodsAway) {
  Log log;
  log.job().generation(1, 0).pod(kOperator, "create", "j-0-a", 1);
  log.add("namespace-controller", "deletecollection", "pods", "", nullptr);
  EXPECT_THAT(log.generation(2, 1).judged(), IsEmpty());
}

/// As the log has a request whose asker has gone before its answer.
TEST(InvariantsTest, AnAnswerThatNobodyHeardCounts) {
  Log log;
  log.job().generation(1, 0).pod(kOperator, "create", "j-0-a", 1);
  log.pod("kubelet", "update", "j-0-a", 1, "Failed").generation(2, 1);
  Json sent = std::exchange(log.last().answer, SharedJson());
  sent["metadata"]["resourceVersion"] = "1";
  log.last().request = sent;
  log.pod(kOperator, "patch", "j-0-a", 1);
  sent = std::exchange(log.last().answer, SharedJson());
  sent["metadata"]["labels"] = {{"trainyard.dev/member", nullptr}};
  log.last().request = sent;
  EXPECT_THAT(log.pod(kOperator, "create", "j-0-b", 2).judged(), IsEmpty());
}

TEST(InvariantsTest, APodWhoseMakerHasDiedMeanwhileCounts) {
  const auto cut_off = [](int code) {
    Log log;
    log.job().generation(1, 0).pod(kOperator, "create", "j-0-a", 1);
    log.last().code = code;
    log.last().answer = SharedJson();
    return log.pod("kwok", "update", "j-0-a", 1);
  };
  Log lost = cut_off(504);
  lost.pod("user", "delete", "j-0-a", 1).generation(2, 1);
  EXPECT_THAT(lost.judged(), IsEmpty());
  EXPECT_THAT(cut_off(504).pod(kOperator, "create", "j-0-b", 1).judged(),
              Contains(HasSubstr("was a member of the same index")));
  Log refused = cut_off(403);  // whoever else has that pod
  refused.pod("user", "delete", "j-0-a", 1).generation(2, 1);
  EXPECT_THAT(refused.judged(), Contains(HasSubstr("1 restarts are counted of 0")));
}

TEST(InvariantsTest, ALatePodIsSeenUnlessSomebodyStoodStill) {
  Log log = restarted();
  log.pod(kOperator, "create", "j-0-c", 1);
  EXPECT_THAT(log.judged(), Contains(HasSubstr("beyond it")));
  EXPECT_THAT(log.judged(/*late_writers=*/true), IsEmpty());
}

TEST(InvariantsTest, APodOfAJobThatIsBeingDeletedIsSeenUnlessThatMayBeSeenLate) {
  Log log;
  log.job().generation(1, 0).add("user", "delete", "trainingjobs", "j", leaving_job());
  log.pod(kOperator, "create", "j-0-a", 1);
  EXPECT_THAT(log.judged(), Contains(HasSubstr("its job is over")));
  EXPECT_THAT(log.judged(/*late_writers=*/false, /*late_views=*/true), IsEmpty());
}

}  // namespace
}  // namespace trainyard::testing_support

// What becomes of jobs whose containers end: rules, success policy; and how much of it a
// status may hold.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/operator_process.h"

namespace trainyard::apiserver {
namespace {

using testing::HasSubstr;

constexpr int kBySigterm = 128 + 15;

class PolicyTest : public testing_support::OperatorTest {
 protected:
  /// A job of one pod with this failure policy.
  static Json job(const std::string& name, const Json& rules, const std::string& failure_class,
                  int restarts_max) {
    Json made = job_manifest(name, 1);
    Json& policy = made["spec"]["failurePolicy"];
    if (!rules.is_null()) policy["rules"] = rules;
    policy["budgets"] = Json::array(
        {{{"class", failure_class}, {"maxRestarts", restarts_max}, {"windowSeconds", 3600}}});
    return made;
  }
  static Json exit_rule(const std::string& name, const std::string& action, const std::string& op,
                        int code) {
    return {{"name", name},
            {"action", action},
            {"onExitCodes", {{"operator", op}, {"values", Json::array({code})}}}};
  }
  /// Applies all of them and waits until they run.
  void run_all(const std::vector<Json>& jobs) const {
    Json list = {{"apiVersion", "v1"}, {"kind", "List"}, {"items", jobs}};
    apply(list);
    for (const Json& job : jobs)
      ASSERT_TRUE(reaches(job["metadata"]["name"], "Running"));
  }
  /// The only pod of the job ends with that code.
  void end(const std::string& job, int code, const Json& conditions = nullptr) const {
    end_container(member(job, 0), code, "", conditions);
  }
  void fails(const std::string& job, const std::string& because) const {
    ASSERT_TRUE(reaches(job, "Failed"));
    EXPECT_EQ(reason(job, "Failed"), because) << job;
  }
};

TEST_F(PolicyTest, TheFirstRuleThatMatchesSaysWhatAFailureMeans) {
  Json free = exit_rule("free", "RestartJob", "In", 9);
  free["countTowardsMax"] = false;
  const Json ignored = {
      {"name", "drained"},
      {"action", "Ignore"},
      {"onPodConditions", Json::array({{{"type", "DisruptionTarget"}, {"status", "True"}}})}};
  run_all(
      {job("in", Json::array({exit_rule("bad", "FailJob", "In", 3)}), "Application", 5),
       job("not-in", Json::array({exit_rule("only-five", "FailJob", "NotIn", 5)}), "Application",
           5),
       job("free", Json::array({free, exit_rule("late", "FailJob", "In", 9)}), "Application", 0),
       job("drained", Json::array({ignored}), "Preemption", 0),
       job("counted", Json::array({exit_rule("again", "RestartJob", "In", 9)}), "Application", 1)});
  const Json disrupted = Json::array({{{"type", "DisruptionTarget"},
                                       {"status", "True"},
                                       {"reason", "EvictionByEvictionAPI"},
                                       {"message", "drained"}}});
  end("in", 3);
  end("not-in", 5);
  end("free", 9);
  end("drained", kBySigterm, disrupted);
  end("counted", 9);
  fails("in", "Rule_bad");
  for (const char* name : {"not-in", "free", "drained", "counted"})
    ASSERT_TRUE(runs(name, 1, 1));
  EXPECT_EQ(job_status("not-in")["attempts"][0]["reason"], "PodFailed");
  EXPECT_EQ(job_status("free")["attempts"][0]["reason"], "Rule_free");
  EXPECT_EQ(job_status("drained")["attempts"][0]["reason"], "Rule_drained");
  EXPECT_EQ(job_status("counted")["attempts"][0]["reason"], "Rule_again");
  end("not-in", 6);
  end("free", 9);
  end("drained", kBySigterm, disrupted);
  end("counted", 9);
  fails("not-in", "Rule_only-five");
  fails("counted", "BudgetExceeded");
  for (const char* name : {"free", "drained"})
    EXPECT_TRUE(runs(name, 1, 2)) << "what does not count is never too much";
}

/// Nodes without processes end a pod at once: it may be gone before anybody looks.
TEST_F(PolicyTest, AnEvictionIsAPreemptionHoweverQuicklyThePodGoes) {
  const Json drained = {
      {"name", "drained"},
      {"action", "Ignore"},
      {"onPodConditions", Json::array({{{"type", "DisruptionTarget"}, {"status", "True"}}})}};
  run_all({job("evicted", Json::array({drained}), "Preemption", 0)});
  for (int evictions = 1; evictions <= 3; ++evictions) {
    const std::string pod = *names_of_pods("evicted").begin();
    const std::string path = "/api/v1/namespaces/" + name_space() + "/pods/" + pod + "/eviction";
    must_with({"create", "--raw", path},
              Json{{"apiVersion", "policy/v1"},
                   {"kind", "Eviction"},
                   {"metadata", {{"name", pod}, {"namespace", name_space()}}}}
                  .dump());
    ASSERT_TRUE(runs("evicted", 1, evictions)) << job_status("evicted").dump(2);
    const Json attempt = job_status("evicted")["attempts"][evictions - 1];
    EXPECT_EQ(attempt["class"], "Preemption") << attempt.dump(2);
    EXPECT_EQ(attempt["reason"], "Rule_drained");
    EXPECT_EQ(attempt["podName"], pod);
  }
}

TEST_F(PolicyTest, TheSuccessPolicyEndsTheOthers) {
  Json by_index = job_manifest("by-index", 3);
  by_index["spec"]["successPolicy"] = {{"rules", Json::array({{{"succeededIndexes", "0"}}})}};
  Json by_count = job_manifest("by-count", 3);
  by_count["spec"]["successPolicy"] = {{"rules", Json::array({{{"succeededCount", 2}}})}};
  run_all({by_index, by_count});
  end_container(member("by-index", 1), 0);
  end_container(member("by-count", 1), 0);
  end_container(member("by-count", 2), 0);
  ASSERT_TRUE(reaches("by-count", "Complete"));
  EXPECT_EQ(condition("by-index", "Complete"), "") << "another index is not enough";
  end_container(member("by-index", 0), 0);
  ASSERT_TRUE(reaches("by-index", "Complete"));
  for (const char* name : {"by-index", "by-count"}) {
    EXPECT_EQ(reason(name, "Complete"), "SuccessPolicy");
    for (const Json& pod : pods(name))
      EXPECT_EQ(pod["status"]["phase"], "Succeeded") << pod["metadata"]["name"];
    EXPECT_EQ(job_status(name)["restarts"]["total"], 0);
  }
}

TEST_F(PolicyTest, ANodeThatHasEndedWellNeedsItsPodNoMore) {
  apply(job_manifest("train", 3));
  ASSERT_TRUE(reaches("train", "Running"));
  const std::string first = member("train", 0);
  end_container(first, 0);
  ASSERT_TRUE(wait_until([&] { return job_status("train").value("completedIndexes", "") == "0"; }));
  must({"delete", "pod", first});
  restart_operator();
  end_container(member("train", 2), 0);
  ASSERT_TRUE(
      wait_until([&] { return job_status("train").value("completedIndexes", "") == "0,2"; }));
  must({"delete", "pod", member("train", 2)});
  EXPECT_TRUE(runs("train", 1, 0));
  EXPECT_EQ(condition("train", "Running"), "True");
  end_container(member("train", 1), 0);
  ASSERT_TRUE(reaches("train", "Complete"));
  EXPECT_EQ(reason("train", "Complete"), "CompletionsReached");
  EXPECT_EQ(job_status("train")["restarts"]["total"], 0);
  EXPECT_EQ(job_status("train")["nodes"]["succeeded"], 3);
}

TEST_F(PolicyTest, AStatusStaysWithinSixteenKibibytesWhateverJobsHaveBeenThrough) {
  apply(job_manifest("train", 2));
  ASSERT_TRUE(reaches("train", "Running"));
  // A history as long as the schema takes it, in characters of which each is six when escaped.
  Json recent = Json::array();
  for (int i = 0; i < 20; ++i)
    recent.push_back("2026-01-02T03:04:" + std::to_string(10 + i) + ".123Z");
  Json classes = Json::array();
  for (const char* name : {"Application", "Infrastructure", "Preemption", "Hang"})
    classes.push_back({{"class", name}, {"total", 20}, {"recent", recent}});
  Json attempts = Json::array();
  const int64_t generation = job_status("train")["membership"]["generation"];
  for (int i = 0; i < 9; ++i) {
    attempts.push_back({{"generation", generation},
                        {"class", "Application"},
                        {"reason", "PodFailed"},
                        {"podName", std::string(63, 'p')},
                        {"podUID", std::string(36, 'u')},
                        {"container", "trainer"},
                        {"node", std::string(253, 'n')},
                        {"exitCode", 1},
                        {"message", std::string(1024, '\x01')},
                        {"startTime", "2026-01-02T03:04:05Z"},
                        {"endTime", "2026-01-02T03:04:05Z"}});
  }
  const Json history = {
      {"status", {{"attempts", attempts}, {"restarts", {{"total", 80}, {"classes", classes}}}}}};
  must({"patch", "tj", "train", "--subresource=status", "--type=merge", "-p", history.dump()});
  end_container(member("train", 0), 1, std::string(1024, '\x02'));
  ASSERT_TRUE(runs("train", 2, 81));
  Json status = job_status("train");
  EXPECT_LE(status.dump().size(), size_t{16} << 10U) << status.dump(2);
  EXPECT_EQ(status["restarts"]["classes"].size(), 4U);
  EXPECT_THAT(status.dump(), HasSubstr("x02")) << "the newest words are kept";
}

}  // namespace
}  // namespace trainyard::apiserver

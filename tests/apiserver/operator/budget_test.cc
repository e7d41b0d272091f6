// Restarts are counted by whose fault they are, and each class has a budget of its own.
#include <cctype>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/operator_process.h"

namespace trainyard::apiserver {
namespace {

using testing::StartsWith;

constexpr int kBySigkill = 128 + 9;
constexpr int kBySigterm = 128 + 15;

class BudgetTest : public testing_support::OperatorTest {
 protected:
  /// A job of one pod that may restart once in each class.
  static Json job(const std::string& name) {
    Json made = job_manifest(name, 1);
    Json& budgets = made["spec"]["failurePolicy"]["budgets"] = Json::array();
    for (const char* failure_class : {"Application", "Infrastructure", "Preemption", "Hang"})
      budgets.push_back({{"class", failure_class}, {"maxRestarts", 1}, {"windowSeconds", 3600}});
    return made;
  }
  static Json disrupted() {
    return Json::array({{{"type", "DisruptionTarget"},
                         {"status", "True"},
                         {"reason", "EvictionByEvictionAPI"},
                         {"message", "drained"}}});
  }
  /// The only pod of the job fails as it does in this class.
  void fail(const std::string& job, const std::string& failure_class) const {
    const std::string pod = member(job, 0);
    if (failure_class == "Application") end_container(pod, 1, "a bug");
    if (failure_class == "Infrastructure") end_container(pod, kBySigkill);
    if (failure_class == "Preemption") end_container(pod, kBySigterm, "", disrupted());
  }
  /// How often the job was restarted, by class.
  Json restarts(const std::string& job) const {
    Json counted = Json::object();
    for (const Json& entry : job_status(job)["restarts"].value("classes", Json::array())) {
      EXPECT_EQ(entry["recent"].size(), entry["total"]) << entry;
      counted[entry["class"].get<std::string>()] = entry["total"];
    }
    return counted;
  }
  void expect_used_up(const std::string& job, const std::string& failure_class) const {
    ASSERT_TRUE(reaches(job, "Failed"));
    EXPECT_EQ(reason(job, "Failed"), "BudgetExceeded");
    EXPECT_THAT(message(job, "Failed"),
                StartsWith(failure_class + ": 1 restart in 3600 s is used up; last: pod " + job));
    EXPECT_EQ(job_status(job)["attempts"].back()["class"], failure_class);
  }
};

TEST_F(BudgetTest, EachClassIsCountedApartAndEndsTheJobByItself) {
  // By its name each of them meets one class alone; `mixed` meets all.
  const std::vector<std::string> classes = {"Application", "Infrastructure", "Preemption"};
  const auto name_of = [](const std::string& failure_class) {
    return static_cast<char>(std::tolower(failure_class[0])) + failure_class.substr(1);
  };
  Json jobs = {{"apiVersion", "v1"}, {"kind", "List"}, {"items", Json::array({job("mixed")})}};
  for (const std::string& failure_class : classes)
    jobs["items"].push_back(job(name_of(failure_class)));
  apply(jobs);
  ASSERT_TRUE(runs("mixed", 1, 0));
  int restarted = 0;
  for (const std::string& failure_class : classes) {
    const std::string name = name_of(failure_class);
    ASSERT_TRUE(runs(name, 1, 0));
    fail(name, failure_class);
    fail("mixed", failure_class);
    ASSERT_TRUE(runs(name, 1, 1));
    EXPECT_EQ(restarts(name), (Json{{failure_class, 1}}));
    ASSERT_TRUE(runs("mixed", 1, ++restarted)) << "what others have used up is not its budget";
  }
  const Json each_once = {{"Application", 1}, {"Infrastructure", 1}, {"Preemption", 1}};
  EXPECT_EQ(restarts("mixed"), each_once);
  for (const std::string& failure_class : classes) {
    const std::string name = name_of(failure_class);
    fail(name, failure_class);
    expect_used_up(name, failure_class);
    EXPECT_EQ(restarts(name), (Json{{failure_class, 1}})) << "what is refused is no restart";
  }
  // A pod that somebody deletes says nothing about whose fault it was.
  must({"delete", "pod", member("mixed", 0), "--wait=false"});
  expect_used_up("mixed", "Infrastructure");
  EXPECT_EQ(restarts("mixed"), each_once);
}

/// Without ranks that report steps, a hang is a gang that does not become ready.
TEST_F(BudgetTest, AGangThatDoesNotStartIsAHang) {
  make_nodes(name_space(), 1, 10, /*kubelets=*/false);
  Json silent = job("silent");
  place(silent, name_space());
  silent["spec"]["progressPolicy"] = {{"startupTimeoutSeconds", 2}};
  apply(silent);
  ASSERT_TRUE(reaches("silent", "FailureTarget"));
  EXPECT_EQ(reason("silent", "FailureTarget"), "StartupTimeout");
  EXPECT_THAT(message("silent", "FailureTarget"), StartsWith("not all pods ready within 2 s"));
  EXPECT_EQ(restarts("silent"), (Json{{"Hang", 1}}));
  EXPECT_EQ(job_status("silent")["attempts"].back()["class"], "Hang");
  // Nobody on that node ends what is deleted.
  EXPECT_EQ(get({"pods"})["items"].size(), 2U);
  EXPECT_EQ(condition("silent", "Failed"), "") << "before its pods have gone";
  must({"delete", "pods", "--all", "--force", "--grace-period=0"});
  ASSERT_TRUE(reaches("silent", "Failed"));
  EXPECT_EQ(reason("silent", "Failed"), "StartupTimeout");
}

}  // namespace
}  // namespace trainyard::apiserver

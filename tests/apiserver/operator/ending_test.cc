#include <csignal>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/ledger_check.h"
#include "tests/support/operator_process.h"

namespace trainyard::apiserver {
namespace {

/// How jobs end that do not end by themselves, and what is kept of jobs that are gone.
class EndingTest : public testing_support::OperatorTest {
 protected:
  /// The entry of the job with that UID in ConfigMap trainyard-ledgers; null: there is none.
  Json ledger_of(const std::string& job, const std::string& uid) const {
    const Json map = get({"configmap", "trainyard-ledgers"});
    const std::string key = job + "." + uid;
    if (!map.is_object() || !map["data"].contains(key)) return nullptr;
    return Json::parse(map["data"][key].get<std::string>());
  }
  void expect_kept(const std::string& job, const std::string& uid, const std::string& end) const {
    ASSERT_TRUE(wait_until([&] { return !ledger_of(job, uid).is_null(); })) << job;
    Json ledger = ledger_of(job, uid);
    EXPECT_EQ(ledger["end"], end);
    if (end != "Deleted") ledger["completionTime"] = ledger["endTime"];
    EXPECT_THAT(testing_support::faults_of_ledger(ledger), testing::IsEmpty()) << ledger;
  }
  /// Waits until nothing shows the job any more.
  void await_gone(const std::string& job) const {
    ASSERT_TRUE(wait_until([&] { return kubectl({"get", "tj", job}).exit_code != 0; }));
  }
  void kill_operator() {
    running_operator().process().signal(SIGKILL);
    ASSERT_TRUE(running_operator().process().wait(kDeadline).has_value());
  }
  std::string uid_of(const std::string& job) const {
    return get({"tj", job})["metadata"]["uid"].get<std::string>();
  }
};

TEST_F(EndingTest, TheLedgersOfJobsThatAreGoneAreKeptAndToldApart) {
  Json job = job_manifest("train", 1);
  job["spec"]["ttlSecondsAfterFinished"] = 0;
  apply(job);
  ASSERT_TRUE(reaches("train", "Running"));
  const std::string first = uid_of("train");
  // The operator is away while its pod fails, and another one takes up the attempt.
  kill_operator();
  end_container(member("train", 0), 1, "a bug");
  restart_operator();
  ASSERT_TRUE(runs("train", 1, 1));
  kill_operator();
  end_container(member("train", 0), 0);
  restart_operator();
  await_gone("train");
  expect_kept("train", first, "Complete");
  EXPECT_EQ(ledger_of("train", first)["restarts"], 1);

  apply(job_manifest("train", 1));
  ASSERT_TRUE(reaches("train", "Running"));
  const std::string second = uid_of("train");
  must({"delete", "tj", "train"});
  expect_kept("train", second, "Deleted");
  expect_kept("train", first, "Complete");
}

TEST_F(EndingTest, ADeadlineFailsTheJobAndEndsItsPods) {
  Json job = job_manifest("train", 2);
  job["spec"]["activeDeadlineSeconds"] = 2;
  apply(job);
  ASSERT_TRUE(reaches("train", "Failed"));
  EXPECT_EQ(reason("train", "Failed"), "DeadlineExceeded");
  EXPECT_TRUE(wait_until([&] { return pods("train").empty(); })) << must({"get", "pods"});
}

TEST_F(EndingTest, AJobOfTheSameNameStartsAtOnce) {
  apply(job_manifest("train", 2));
  ASSERT_TRUE(reaches("train", "Running"));
  const std::set<std::string> before = names_of_pods("train");
  must({"delete", "tj", "train", "--cascade=background"});
  apply(job_manifest("train", 2));
  ASSERT_TRUE(reaches("train", "Running"));
  // Those of the job before may still wait for the garbage collector.
  const Json uid = get({"tj", "train"})["metadata"]["uid"];
  int own = 0;
  for (const Json& pod : pods("train")) {
    if (pod["metadata"]["labels"]["trainyard.dev/job-uid"] != uid) continue;
    ++own;
    const std::string name = pod["metadata"]["name"];
    EXPECT_FALSE(before.contains(name)) << name;
  }
  EXPECT_EQ(own, 2);
}

TEST_F(EndingTest, ANamespaceGoesWithItsJobs) {
  apply(job_manifest("train", 2));
  ASSERT_TRUE(reaches("train", "Running"));
  must({"delete", "namespace", name_space(), "--timeout=60s"});
  EXPECT_NE(kubectl({"get", "namespace", name_space()}).exit_code, 0);
}

}  // namespace
}  // namespace trainyard::apiserver

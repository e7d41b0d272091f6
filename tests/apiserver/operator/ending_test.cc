#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/operator_process.h"

namespace trainyard::apiserver {
namespace {

/// How jobs end that do not end by themselves.
class EndingTest : public testing_support::OperatorTest {};

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

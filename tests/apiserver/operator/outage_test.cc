// etcd and the API server die while jobs run, and come back.
#include <chrono>
#include <csignal>
#include <filesystem>
#include <iostream>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/apiserver/operator/upheaval.h"
#include "tests/support/plane_faults.h"

namespace trainyard::apiserver {
namespace {

using testing::HasSubstr;
using testing_support::kill_part;

/// In this order.
void kill_and_revive(const std::filesystem::path& plane, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    kill_part(plane, part);
  testing_support::revive(plane);
}

TEST_F(UpheavalTest, JobsAtRestAreLeftAloneWhateverDies) {
  Json replaced = job_manifest("replaced", 2);
  replaced["spec"]["failurePolicy"]["restartStrategy"] = "ReplacePod";
  apply({{"apiVersion", "v1"},
         {"kind", "List"},
         {"items", Json::array({job_manifest("train", 3), replaced})}});
  ASSERT_TRUE(runs("train", 3, 0));
  ASSERT_TRUE(runs("replaced", 2, 0));
  const std::set<std::string> before = names_of_pods("train");
  const std::set<std::string> others = names_of_pods("replaced");
  for (const char* part : {"etcd", "kube-apiserver"}) {
    SCOPED_TRACE(part);
    kill_and_revive(plane().folder(), {part});
    const auto back = std::chrono::steady_clock::now();
    const std::string late = std::string("after-") + part;
    apply(job_manifest(late, 1));
    ASSERT_TRUE(runs(late, 1, 0));
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - back;
    std::cout << part << " was back: a new job runs after " << took.count() << " s\n";
    EXPECT_EQ(names_of_pods("train"), before);
    EXPECT_EQ(names_of_pods("replaced"), others);
    EXPECT_TRUE(runs("train", 3, 0));
    EXPECT_TRUE(runs("replaced", 2, 0));
  }
}

TEST_F(UpheavalTest, ARestartInWhoseMidstEverythingDiesIsCountedOnce) {
  leave_unjudged();
  apply(job_manifest("train", 3));
  ASSERT_TRUE(runs("train", 3, 0));
  const std::set<std::string> before = names_of_pods("train");
  must({"delete", "pod", member("train", 1), "--wait=false"});
  kill_and_revive(plane().folder(), {"kube-apiserver", "etcd"});
  ASSERT_TRUE(runs("train", 3, 1));
  const std::set<std::string> after = names_of_pods("train");
  EXPECT_EQ(after.size(), 3U);
  for (const std::string& name : before)
    EXPECT_FALSE(after.contains(name)) << name;
  EXPECT_EQ(job_status("train")["membership"]["generation"], 2);
}

TEST_F(UpheavalTest, WhatHappenedInACompactedPastIsListed) {
  for (const char* name : {"gone", "paused"})
    apply(job_manifest(name, 1));
  apply(job_manifest("train", 3));
  ASSERT_TRUE(runs("train", 3, 0));
  for (const char* name : {"gone", "paused"})
    ASSERT_TRUE(runs(name, 1, 0));
  testing_support::OperatorProcess& stands_still = running_operator();
  stands_still.process().signal(SIGSTOP);
  kill_and_revive(plane().folder(), {"kube-apiserver"});
  must({"delete", "pod", member("train", 1), "--wait=false"});
  must({"delete", "tj", "gone", "--cascade=background"});
  patch("paused", {{"suspend", true}});
  apply(job_manifest("late", 2));
  testing_support::compact_history(plane().folder(),
                                   get({"tj", "late"})["metadata"]["resourceVersion"]);
  stands_still.process().signal(SIGCONT);
  ASSERT_TRUE(runs("train", 3, 1)) << stands_still.log();
  ASSERT_TRUE(runs("late", 2, 0));
  ASSERT_TRUE(reaches("paused", "Suspended"));
  EXPECT_TRUE(wait_until([&] { return pods("gone").empty(); }));
  EXPECT_THAT(stands_still.log(), HasSubstr(R"("reason":"Expired")"));
}

}  // namespace
}  // namespace trainyard::apiserver

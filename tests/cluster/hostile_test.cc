// Two jobs in one namespace, one of them hostile: what it says and writes costs the other one
// nothing but what it damages with its own hands, which is found.
#include <csignal>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/api_objects.h"
#include "tests/support/saving_job_test.h"

namespace trainyard::cluster {
namespace {

using testing::HasSubstr;

constexpr char kSystem[] = "trainyard-system";
constexpr int kSeconds = 30;

class HostileTest : public testing_support::SavingJobTest {
 protected:
  /// Its pod runs tests/cluster/intruder.cc in place of an agent, with the other job's checkpoints
  /// before it.
  Json hostile_job(const std::string& victim_uid, const Json& victim_pod) const {
    Json job = saving_job(1);
    job["metadata"]["name"] = "hostile";
    job["spec"]["checkpointPolicy"]["path"] = "hostile";
    Json& container = job["spec"]["template"]["spec"]["containers"][0];
    container["image"] = "localhost/trainyard-intruder:test";
    container["resources"]["limits"]["cpu"] = "1";
    container["args"] = {std::to_string(kSeconds), victim_uid, victim_pod["metadata"]["name"],
                         victim_pod["metadata"]["uid"], std::string("/victim/") + kJob};
    // An image of its own says itself what the namespace asks of pods.
    container["securityContext"] = {{"allowPrivilegeEscalation", false},
                                    {"capabilities", {{"drop", Json::array({"ALL"})}}},
                                    {"runAsNonRoot", true},
                                    {"seccompProfile", {{"type", "RuntimeDefault"}}}};
    container["volumeMounts"].push_back({{"name", "data"}, {"mountPath", "/victim"}});
    return job;
  }
  /// What the intruder has printed so far.
  std::string words() const {
    return kubectl({"logs", "--selector", "trainyard.dev/job-name=hostile"}).output;
  }
  Json operator_pod() const {
    const Json list = Json::parse(must({"get", "pods", "--namespace", kSystem, "--selector",
                                        "app.kubernetes.io/name=trainyard", "-o", "json"}));
    return list.at("items").at(0);
  }
};

TEST_F(HostileTest, AJobThatLiesAndFloodsAndDamagesHarmsNoOther) {
  const Json job = saving_job(2);
  ASSERT_TRUE(trains(job));
  const std::string uid = get({"tj", kJob})["metadata"]["uid"];
  const std::set<std::string> pods = names_of_pods(kJob);
  const Json operator_before = operator_pod();

  apply(hostile_job(uid, get({"pod", member(kJob, 1)})));
  ASSERT_TRUE(wait_until([&] { return words().find("damaged: ") != std::string::npos; }))
      << words();
  EXPECT_THAT(words(), testing::Not(HasSubstr("damaged: 0")));
  int64_t reached = step();
  int64_t moves = 0;
  ASSERT_TRUE(wait_until(
      [&] {
        const int64_t now = step();
        moves += now > reached ? 1 : 0;
        reached = std::max(reached, now);
        return words().find("done: ") != std::string::npos;
      },
      std::chrono::seconds(5 * kSeconds)))
      << words();
  EXPECT_THAT(words(), HasSubstr(" 0 breaches"));
  EXPECT_GE(moves, 3) << "nothing new was heard of the other job";
  EXPECT_THAT(operator_log(), HasSubstr("refusing a control stream"));
  EXPECT_EQ(names_of_pods(kJob), pods);
  EXPECT_EQ(job_status(kJob)["restarts"]["total"], 0) << job_status(kJob).dump(2);
  const Json operator_after = operator_pod();
  EXPECT_EQ(operator_after["metadata"]["uid"], operator_before["metadata"]["uid"]);
  EXPECT_EQ(operator_after["status"]["containerStatuses"][0]["restartCount"],
            operator_before["status"]["containerStatuses"][0]["restartCount"]);

  // What it damaged is no checkpoint: the next generation goes on from another one.
  const std::string pod = member(kJob, 1);
  on_node(node_of(pod), {"kill", "-KILL", process_of(pod, 1)});
  ASSERT_TRUE(runs(kJob, 2, 1));
  ASSERT_TRUE(saves(2));
  must({"delete", "tj", "hostile"});
  expect_undisturbed(job);
}

TEST_F(HostileTest, AJobThatNamesTheCheckpointsOfAnotherIsTurnedAway) {
  const Json job = saving_job(1);
  ASSERT_TRUE(trains(job));
  Json thief = job;
  thief["metadata"]["name"] = "thief";
  thief["spec"]["checkpointPolicy"]["path"] = kJob;
  apply(thief);
  ASSERT_TRUE(reaches("thief", "Failed")) << job_status("thief").dump(2);
  EXPECT_THAT(job_status("thief")["attempts"][0].value("message", ""),
              HasSubstr("holds checkpoints of job"))
      << job_status("thief").dump(2);
  EXPECT_TRUE(saves(1, newest_saved().step));
  EXPECT_EQ(job_status(kJob)["restarts"]["total"], 0);
  expect_undisturbed(job);
}

}  // namespace
}  // namespace trainyard::cluster

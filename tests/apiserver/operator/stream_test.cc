#include "tests/apiserver/operator/stream.h"

#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/exact.h"

namespace trainyard::apiserver {
namespace {

using testing::HasSubstr;

TEST_F(StreamTest, AnEngineTrainsInPodsAndFurtherToTheHashesOfLocalRuns) {
  make_claim();
  Json job = engine_job(2, 60);
  job["spec"]["engine"]["learningRateSchedule"] = {{"horizonSteps", 120}};
  apply(job);
  ASSERT_TRUE(until([&] { return condition("tiny", "Complete") == "True"; }))
      << job_status("tiny").dump(2);
  Json status = job_status("tiny");
  EXPECT_EQ(status["restarts"]["total"], 0);
  EXPECT_EQ(status["progress"]["step"], 60);
  EXPECT_EQ(status["checkpoint"]["lastStep"], 60);
  const std::filesystem::path checkpoints = machine_->claim("ckpt");
  EXPECT_TRUE(testing_support::same_hash(trainyard_->state_hash(checkpoints / "tiny"),
                                         trainyard_->state_hash_of_run(job)));

  job["spec"]["engine"]["steps"] = 120;
  const auto refused = kubectl_with({"apply"}, job.dump());
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_THAT(refused.errors, HasSubstr("create another job with engine.startFrom"));
  // So another does: on more ranks, in another layout.
  Json longer = job;
  longer["metadata"]["name"] = "longer";
  longer["spec"]["numNodes"] = 3;
  longer["spec"]["engine"]["parallelism"] = {{"zeroStage", 3}};
  longer["spec"]["engine"]["startFrom"] = {
      {"checkpoint", checkpoints / "tiny" / "g1-step-0000000060"}, {"what", "State"}};
  apply(longer);
  ASSERT_TRUE(until([&] { return condition("longer", "Complete") == "True"; }))
      << job_status("longer").dump(2);
  status = job_status("longer");
  EXPECT_EQ(status["restarts"]["total"], 0);
  EXPECT_EQ(status["progress"]["step"], 120);
  EXPECT_EQ(status["membership"]["layout"], "shard 3, ZeRO-3");
  EXPECT_TRUE(testing_support::same_hash(trainyard_->state_hash(checkpoints / "longer"),
                                         trainyard_->state_hash_of_run(job)));
}

TEST_F(StreamTest, AKilledRankRestartsAllFromTheirCheckpoint) {
  make_claim();
  const Json job = engine_job(2, 4000);
  apply(job);
  // All of the training takes some seconds: what status tells may come too late.
  ASSERT_TRUE(until([&] { return has_checkpoint_after("g1-step-0000000020"); }))
      << job_status("tiny").dump(2);
  const pid_t rank = rank_of(member("tiny", 1));
  ASSERT_GT(rank, 0);
  ::kill(rank, SIGKILL);
  ASSERT_TRUE(until([&] { return condition("tiny", "Complete") == "True"; }))
      << job_status("tiny").dump(2);
  Json status = job_status("tiny");
  EXPECT_EQ(status["restarts"]["total"], 1);
  Json& attempt = status["attempts"][0];
  EXPECT_EQ(attempt["rank"], 1) << attempt.dump(2);
  EXPECT_EQ(attempt["signal"], SIGKILL);
  EXPECT_GE(attempt["resumedFromStep"], 20) << attempt.dump(2);
  EXPECT_TRUE(testing_support::same_hash(trainyard_->state_hash(machine_->claim("ckpt") / "tiny"),
                                         trainyard_->state_hash_of_run(job)));
}

TEST_F(StreamTest, AKilledRankStartsAgainInItsPod) {
  make_claim();
  Json job = engine_job(2, 4000);
  job["spec"]["failurePolicy"]["restartStrategy"] = "InPlace";
  apply(job);
  ASSERT_TRUE(until([&] { return has_checkpoint_after("g1-step-0000000020"); }))
      << job_status("tiny").dump(2);
  const std::vector<std::string> pods = {member("tiny", 0), member("tiny", 1)};
  const pid_t rank = rank_of(pods[1]);
  ASSERT_GT(rank, 0);
  ::kill(rank, SIGKILL);
  ASSERT_TRUE(until([&] {
    const Json status = job_status("tiny");
    return status.contains("restarts") && status["restarts"].value("inPlace", 0) == 1;
  })) << job_status("tiny").dump(2);
  EXPECT_THAT(names_of_pods("tiny"), testing::UnorderedElementsAreArray(pods));
  ASSERT_TRUE(until([&] { return condition("tiny", "Complete") == "True"; }))
      << job_status("tiny").dump(2);
  Json status = job_status("tiny");
  EXPECT_EQ(status["restarts"]["total"], 1);
  EXPECT_EQ(status["restarts"]["inPlace"], 1);
  Json& attempt = status["attempts"][0];
  EXPECT_EQ(attempt["inPlace"], true) << attempt.dump(2);
  EXPECT_EQ(attempt["rank"], 1) << attempt.dump(2);
  EXPECT_GE(attempt["resumedFromStep"], 20) << attempt.dump(2);
  let_it_delete();
  EXPECT_THAT(names_of_pods("tiny"), testing::UnorderedElementsAreArray(pods)) << "with their logs";
  EXPECT_TRUE(testing_support::same_hash(trainyard_->state_hash(machine_->claim("ckpt") / "tiny"),
                                         trainyard_->state_hash_of_run(job)));
}

TEST_F(StreamTest, AFatalExitKeepsThePodThatTellsWhy) {
  // Rank 0 fails if the folder of its job is missing. Otherwise it lets rank 3 fail for good.
  const std::string script = "cd " + folder().string() +
                             "; case $RANK in"
                             " 0) mkdir $1 2>/dev/null && exit 7; : >$1/go; exec sleep 1000;;"
                             " 3) while [ ! -e $1/go ]; do sleep 0.1; done; exit 64;;"
                             " *) exec sleep 1000;; esac";
  const std::vector<std::pair<std::string, std::string>> jobs = {
      {"recreated", "RecreateAll"}, {"at-once", "InPlace"}, {"restarted", "InPlace"}};
  for (const auto& [name, strategy] : jobs) {
    if (name != "restarted") std::filesystem::create_directory(folder() / name);
    Json job = program_job(script);
    job["metadata"]["name"] = name;
    job["spec"]["failurePolicy"]["restartStrategy"] = strategy;
    job["spec"]["template"]["spec"]["containers"][0]["args"] = {name};
    apply(job);
  }
  for (const auto& [name, strategy] : jobs) {
    ASSERT_TRUE(until([&, name = name] { return condition(name, "Failed") == "True"; }))
        << job_status(name).dump(2);
  }
  let_it_delete();
  for (const auto& [name, strategy] : jobs) {
    SCOPED_TRACE(name);
    const Json status = job_status(name);
    EXPECT_EQ(reason(name, "Failed"), "FatalExitCode");
    EXPECT_EQ(status["restarts"].value("inPlace", -1), name == "restarted" ? 1 : 0);
    const Json attempt = status["attempts"].back();
    EXPECT_EQ(attempt.value("exitCode", 0), 64) << attempt.dump(2);
    EXPECT_EQ(attempt.value("rank", -1), 3) << attempt.dump(2);
    const std::vector<Json> left = pods(name);
    EXPECT_THAT(left, testing::SizeIs(1));
    for (const Json& pod : left) {
      EXPECT_EQ(pod["metadata"]["uid"], attempt["podUID"]);
      EXPECT_EQ(pod["status"]["phase"], "Failed");
      const Json& trainer = pod["status"]["containerStatuses"][0];
      EXPECT_EQ(trainer["state"]["terminated"]["exitCode"], 64) << trainer.dump(2);
    }
  }
}

TEST_F(StreamTest, AProgramOfAnotherImageIsStartedOnceARank) {
  const std::filesystem::path met = folder() / "met";
  Json job = program_job(
      "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $NODE_RANK $MASTER_PORT "
      "$1 $LD_LIBRARY_PATH >>" +
      met.string() + "; while [ $(wc -l <" + met.string() + ") -lt 4 ]; do sleep 0.1; done");
  // Kept from the agent's loader, and for the ranks all the same.
  job["spec"]["template"]["spec"]["containers"][0]["env"] =
      Json::array({{{"name", "LD_LIBRARY_PATH"}, {"value", "/opt/lib"}}});
  apply(job);
  ASSERT_TRUE(until([&] { return condition("tiny", "Complete") == "True"; }))
      << job_status("tiny").dump(2);
  EXPECT_EQ(job_status("tiny")["restarts"]["total"], 0);
  std::ifstream file(met);
  std::set<std::string> lines;
  for (std::string line; std::getline(file, line);)
    lines.insert(line);
  EXPECT_THAT(lines, testing::ElementsAre("0 4 0 2 0 29500 an argument /opt/lib",
                                          "1 4 1 2 0 29500 an argument /opt/lib",
                                          "2 4 0 2 1 29500 an argument /opt/lib",
                                          "3 4 1 2 1 29500 an argument /opt/lib"));
}

TEST_F(StreamTest, AProcessOfAProgramThatFailsFailsItsPodWithItsCodeAndItsWords) {
  apply(program_job("[ $RANK = 3 ] || exec sleep 1000; echo 'no such layer' >&2; exit 7"));
  // What becomes of later generations is no matter: each of them fails so.
  ASSERT_TRUE(until([&] {
    return job_status("tiny").value("restarts", Json::object()).value("total", 0) > 0;
  })) << job_status("tiny").dump(2);
  Json status = job_status("tiny");
  Json& attempt = status["attempts"][0];
  EXPECT_EQ(attempt["class"], "Application") << attempt.dump(2);
  EXPECT_EQ(attempt["exitCode"], 7) << attempt.dump(2);
  EXPECT_EQ(attempt["rank"], 3) << attempt.dump(2);
  EXPECT_THAT(attempt.value("podName", ""), HasSubstr("tiny-1-"));
  EXPECT_THAT(attempt.value("message", ""), HasSubstr("no such layer"));
}

/// Longer than startupTimeoutSeconds after the ranks started nobody may take them for late.
TEST_F(StreamTest, TrainingGoesOnWhileTheOperatorIsAway) {
  make_claim();
  Json job = engine_job(2, 100'000);
  constexpr std::chrono::seconds kStartup{40};
  job["spec"]["progressPolicy"]["startupTimeoutSeconds"] = kStartup.count();
  const auto began = std::chrono::steady_clock::now();
  apply(job);
  ASSERT_TRUE(until([&] { return step() >= 40; })) << job_status("tiny").dump(2);
  ASSERT_TRUE(until([&] { return std::chrono::steady_clock::now() > began + kStartup; }));
  const auto pods_before = names_of_pods("tiny");
  const int64_t term_before = remembered_term();
  operator_->process().signal(SIGKILL);
  operator_->process().wait(kDeadline);
  const int64_t before = step();
  start_operator();
  ASSERT_TRUE(until([&] { return step() > before; })) << job_status("tiny").dump(2);
  EXPECT_EQ(names_of_pods("tiny"), pods_before);
  EXPECT_EQ(job_status("tiny")["restarts"]["total"], 0);
  EXPECT_EQ(job_status("tiny")["membership"]["generation"], 1);
  EXPECT_GT(remembered_term(), term_before) << "agents refuse who leads in no later term";
}

TEST_F(StreamTest, ANewAuthorityReachesRunningJobs) {
  make_claim();
  apply(engine_job(2, 100'000));
  ASSERT_TRUE(until([&] { return step() >= 40; })) << job_status("tiny").dump(2);
  const Json before = get({"configmap", "tiny-control"})["data"];
  must({"patch", "secret", "trainyard-control-tls", "-n", "trainyard-system", "--type=merge", "-p",
        R"({"data":null})"});
  operator_->process().signal(SIGKILL);
  operator_->process().wait(kDeadline);
  start_operator();
  ASSERT_TRUE(until([&] { return get({"configmap", "tiny-control"})["data"] != before; }));
  machine_->refresh_volumes();
  const int64_t reached = step();
  EXPECT_TRUE(until([&] { return step() > reached; })) << job_status("tiny").dump(2);
  EXPECT_EQ(job_status("tiny")["restarts"]["total"], 0);
}

TEST_F(StreamTest, TheConfigMapsThatADeletedJobOfTheNameHasLeftMakeRoom) {
  make_claim();
  apply(engine_job(1, 100'000));
  ASSERT_TRUE(until([&] { return step() >= 0; })) << operator_->log();
  const Json held = {{"metadata", {{"finalizers", Json::array({"test.example/hold"})}}}};
  const Json free = {{"metadata", {{"finalizers", nullptr}}}};
  must({"patch", "configmap", "tiny-control", "--type=merge", "-p", held.dump()});
  must({"delete", "tj", "tiny", "--cascade=background"});
  apply(engine_job(1, 100'000));
  ASSERT_TRUE(until([&] { return reason("tiny", "Accepted") == "NameConflict"; }))
      << operator_->log();
  EXPECT_THAT(operator_->log(), testing::Not(HasSubstr("cannot delete")));
  must({"patch", "configmap", "tiny-control", "--type=merge", "-p", free.dump()});
  ASSERT_TRUE(until([&] { return step() >= 0; })) << operator_->log();
  EXPECT_EQ(get({"configmap", "tiny-control"})["metadata"]["ownerReferences"][0]["uid"],
            get({"tj", "tiny"})["metadata"]["uid"]);
}

TEST_F(StreamTest, AForgedTokenIsLetInNowhere) {
  make_claim();
  // A good token of this cluster, but for the API server and bound to no pod.
  std::string token = must({"create", "token", "default"});
  token.erase(token.find_last_not_of("\r\n") + 1);
  machine_->forge_token(token);
  apply(engine_job(1, 20));
  ASSERT_TRUE(until([&] {
    return operator_->log().find("refusing a control stream") != std::string::npos;
  })) << operator_->log();
  EXPECT_EQ(step(), -1);
  EXPECT_THAT(operator_->log(), testing::Not(HasSubstr("agent connected")));
}

}  // namespace
}  // namespace trainyard::apiserver

// `restartStrategy: InPlace` under `trainyard run`: ranks that die start again in the pods that
// run.
#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/paths.h"
#include "tests/support/run_fixture.h"

namespace trainyard {
namespace {

using testing_support::content_of;
using testing_support::RunFixture;

/// Ranks that wait for nobody have steps left when a failure at step 25 is heard of: where one has
/// ended well, all restart.
constexpr char kManySteps[] = "200";

class RunInPlaceTest : public RunFixture {
 protected:
  RunInPlaceTest() { use("InPlace"); }

  void use(const std::string& strategy, const std::string& policy = "",
           int ranks_per_node = 2) const {
    std::string manifest = kManifest;
    const std::string line = "failurePolicy: {";
    manifest.replace(manifest.find(line), line.size(),
                     line + "restartStrategy: " + strategy + ", " + policy);
    const std::string ranks = "numProcPerNode: ";
    manifest.replace(manifest.find(ranks), ranks.size() + 1,
                     ranks + std::to_string(ranks_per_node));
    write("job.yaml", manifest);
  }

  /// Also those that are gone: their folders are kept.
  int64_t pods_made() const {
    const std::filesystem::directory_iterator pods(run_dir() / "pods");
    return std::distance(begin(pods), end(pods));
  }

  static Json condition(const Json& status, const std::string& type) {
    for (const Json& one : status["conditions"]) {
      if (one["type"] == type) return one;
    }
    return Json::object();
  }

  /// What an ended job tells about its end, without what differs from run to run: times, steps and
  /// names of pods.
  Json what_is_left() const {
    Json now = status();
    Json left = {{"failed", now["nodes"]["failed"]}, {"conditions", Json::array()}};
    for (const Json& one : now["conditions"])
      left["conditions"].push_back({one["type"], one["status"], one["reason"]});
    const Json& attempt = now["attempts"].back();
    for (const char* member : {"class", "exitCode", "rank", "container", "reason", "message"})
      left["attempt"][member] = attempt.value(member, Json());
    Json told = summary();
    for (const char* member : {"outcome", "exitCode", "layout", "totalSteps", "restarts"})
      left["summary"][member] = told[member];
    std::string reason = told["reason"];
    const std::string pod = attempt["podName"];
    left["summary"]["reason"] = reason.replace(reason.find(pod), pod.size(), "POD");
    add_exits(left);
    return left;
  }

  /// Adds how the newest pod of each index ended, and the records of the pods that were kept.
  void add_exits(Json& left) const {
    std::map<std::string, int64_t> newest;
    left["records"] = Json::array();
    for (const auto& pod : std::filesystem::directory_iterator(run_dir() / "pods")) {
      const std::string name = pod.path().filename();
      const std::string index = name.substr(0, name.rfind('-'));
      Json record = Json::parse(content_of(pod.path() / "exit.json"))["exit"];
      const int64_t ended_at = record["finishedAtNanos"];
      record.erase("finishedAtNanos");
      record.erase("lastStep");
      const bool is_kept = std::filesystem::exists(pod.path() / "pod.json");
      if (is_kept) left["records"].push_back({index, record});
      if (ended_at > newest[index]) left["exits"][index] = record;
      newest[index] = std::max(newest[index], ended_at);
    }
  }

  void make_damaged_data(const std::string& name) const {
    std::filesystem::copy(folder() / "data/train", folder() / "data" / name,
                          std::filesystem::copy_options::recursive);
    std::fstream shard(folder() / "data" / name / "00000.tokens",
                       std::ios::in | std::ios::out | std::ios::binary);
    shard.seekp(300);
    shard << "??";
  }

  /// Runs the job with two ranks of the engine, of which rank 1 reads its tokens from `data`. Its
  /// process then does what `then` says, before it ends with the engine's exit code.
  void expect_failure_of_rank_1(const std::string& data, const std::string& then, int nodes) {
    SCOPED_TRACE(data + " " + then + " " + std::to_string(nodes));
    const std::filesystem::path worker = folder() / "worker";
    write("worker",
          "#!/bin/sh\nworker=" + testing_support::program_path("trainyard-worker") +
              "\n[ $RANK = 1 ] || exec $worker\nconfig=" + (folder() / "rank-1.json").string() +
              "\nsed s,data/train,data/" + data + ", $TRAINYARD_ENGINE_CONFIG >$config\n" +
              "TRAINYARD_ENGINE_CONFIG=$config $worker\ncode=$?\n" + then + "\nexit $code\n");
    std::filesystem::permissions(worker, std::filesystem::perms::owner_all);
    std::filesystem::remove_all(run_dir());
    const auto run = start({{"TRAINYARD_WORKER", worker}}, {"--nodes", std::to_string(nodes)});
    expect_end(*run, 65);
    const Json now = status();
    EXPECT_EQ(now["restarts"].value("total", -1), 0) << now.dump(1);
    const Json& attempt = now["attempts"].back();
    EXPECT_EQ(attempt.value("exitCode", 0), 65) << attempt.dump(1);
    EXPECT_EQ(attempt.value("rank", -1), 1) << attempt.dump(1);
    EXPECT_THAT(attempt.value("message", ""), ::testing::HasSubstr("data/" + data));
    expect_nothing_left();
  }
};

TEST_F(RunInPlaceTest, AKilledRankStartsAgainInItsPod) {
  const auto run =
      start({{"FAKE_RANK_FAULT", "3:25:kill"}, {"FAKE_RANK_STEPS", kManySteps}}, {"--nodes", "2"});
  expect_end(*run, 0);
  EXPECT_EQ(pods_made(), 2);
  const Json now = status();
  EXPECT_EQ(now["restarts"].value("inPlace", 0), 1);
  EXPECT_EQ(now["restarts"].value("podReplacements", -1), 0);
  EXPECT_EQ(now["membership"].value("generation", 0), 2);
  EXPECT_EQ(now["membership"].value("podsSince", 0), 1);
  const Json attempt = now["attempts"][0];
  EXPECT_TRUE(attempt.value("inPlace", false)) << attempt.dump(1);
  EXPECT_EQ(attempt.value("rank", -1), 3);
  EXPECT_EQ(attempt.value("signal", 0), SIGKILL);
  EXPECT_GE(attempt.value("resumedFromStep", -1), 10) << attempt.dump(1);
  expect_nothing_left();
}

TEST_F(RunInPlaceTest, AJobThatFailsForGoodLeavesWhatItLeavesWithoutIt) {
  const std::vector<std::string> faults = {"0:5:config", "1:12:kill,0:22:config",
                                           "1:12:kill,1:22:crash,0:32:config"};
  for (size_t earlier = 0; earlier < faults.size(); ++earlier) {
    std::vector<Json> left;
    for (const char* strategy : {"RecreateAll", "InPlace"}) {
      SCOPED_TRACE(std::string(strategy) + " after " + std::to_string(earlier));
      use(strategy, "", earlier == 0 ? 2 : 1);  // agents wait a second for the mate of a rank
      std::filesystem::remove_all(run_dir());
      const auto run = start({{"FAKE_RANK_FAULT", faults[earlier]}, {"FAKE_RANK_STEPS", "1000"}},
                             {"--nodes", "2"});
      expect_end(*run, 64);
      EXPECT_EQ(status()["restarts"].value("total", size_t{99}), earlier);
      left.push_back(what_is_left());
      EXPECT_THAT(left.back()["records"], ::testing::SizeIs(1)) << "the pod to blame is kept";
      expect_nothing_left();
    }
    EXPECT_EQ(left[0], left[1]) << Json::diff(left[0], left[1]).dump(1);
  }
}

TEST_F(RunInPlaceTest, ARuleThatNamesTheContainerFailsTheJob) {
  for (const char* strategy : {"RecreateAll", "InPlace"}) {
    use(strategy,
        "rules: [{name: bug, action: FailJob, "
        "onExitCodes: {containerName: main, operator: In, values: [70]}}], ");
    write("job.yaml", content_of(folder() / "job.yaml") +
                          "  template: {spec: {containers: [{name: main, image: worker}]}}\n");
    std::filesystem::remove_all(run_dir());
    const auto run = start({{"FAKE_RANK_FAULT", "2:22:crash"}}, {"--nodes", "2"});
    expect_end(*run, 70);
    const Json now = status();
    EXPECT_EQ(now["restarts"].value("total", -1), 0) << strategy;
    EXPECT_EQ(condition(now, "Failed").value("reason", ""), "Rule_bug") << strategy;
    EXPECT_EQ(now["attempts"][0].value("container", ""), "main") << strategy;
  }
}

/// Rank 1 finds no data, or damaged data, or takes long to end after it has found none.
TEST_F(RunInPlaceTest, AFatalFailureOfOneRankFailsTheJobWhoeverEndsFirst) {
  make_damaged_data("damaged");
  for (const char* strategy : {"RecreateAll", "InPlace"}) {
    for (const int nodes : {1, 2}) {
      use(strategy, "budgets: [{class: Infrastructure, maxRestarts: 1}], ", 2 / nodes);
      expect_failure_of_rank_1("none", "", nodes);
      expect_failure_of_rank_1("damaged", "", nodes);
      const bool is_alike = nodes == 2 && strategy == std::string("RecreateAll");
      if (!is_alike) expect_failure_of_rank_1("none", "exec sleep 60", nodes);
    }
  }
}

TEST_F(RunInPlaceTest, AKilledAgentIsReplacedAndTheOtherPodGoesOn) {
  const auto run =
      start({{"FAKE_RANK_STEP_MS", "40"}, {"FAKE_RANK_STEPS", "150"}}, {"--nodes", "2"});
  ASSERT_TRUE(wait_until([&] { return checkpointed(10); })) << errors();
  const std::vector<pid_t> agents = running("trainyard-agent");
  ASSERT_EQ(agents.size(), 2u);
  ::kill(agents[0], SIGKILL);
  ASSERT_TRUE(wait_until([&] { return status()["restarts"].value("total", 0) == 1; })) << errors();
  ASSERT_TRUE(wait_until([&] { return running("trainyard-agent").size() == 2; })) << errors();
  EXPECT_THAT(running("trainyard-agent"), ::testing::Contains(agents[1]));
  expect_end(*run, 0);
  EXPECT_EQ(status()["restarts"].value("podReplacements", 0), 1);
  EXPECT_EQ(status()["restarts"].value("inPlace", -1), 0);
  EXPECT_EQ(status()["restarts"].value("total", 0), 1) << "one generation, one restart";
  expect_nothing_left();
}

TEST_F(RunInPlaceTest, ASpareTakesTheIndexOfAKilledAgent) {
  std::string manifest = kManifest;
  const std::string line = "failurePolicy: {";
  manifest.replace(manifest.find(line), line.size(),
                   "spares: {count: 1}\n  failurePolicy: {restartStrategy: InPlace, ");
  write("job.yaml", manifest);
  const auto run =
      start({{"FAKE_RANK_STEP_MS", "40"}, {"FAKE_RANK_STEPS", "120"}}, {"--nodes", "2"});
  const auto is_parked = [&] {
    const Json now = status();
    return now.contains("nodes") && now["nodes"].value("spare", 0) == 1 &&
           running("trainyard-agent").size() == 3;
  };
  ASSERT_TRUE(wait_until([&] { return is_parked() && checkpointed(10); })) << errors();
  ::kill(running("trainyard-agent")[0], SIGKILL);
  ASSERT_TRUE(wait_until([&] { return status()["restarts"].value("total", 0) == 1; })) << errors();
  expect_end(*run, 0);
  const Json now = status();
  EXPECT_EQ(now["restarts"].value("promotions", 0), 1);
  EXPECT_EQ(now["restarts"].value("podReplacements", 0), 1);
  EXPECT_EQ(now["restarts"].value("total", 0), 1);
  EXPECT_EQ(pods_made(), 3);
  EXPECT_EQ(now["membership"]["promoted"].size(), 1u);
  expect_nothing_left();
}

TEST_F(RunInPlaceTest, ReplacePodReplacesThePodWhoseRankFailed) {
  use("ReplacePod");
  const auto run =
      start({{"FAKE_RANK_FAULT", "3:25:crash"}, {"FAKE_RANK_STEPS", kManySteps}}, {"--nodes", "2"});
  expect_end(*run, 0);
  const Json now = status();
  EXPECT_EQ(now["restarts"].value("podReplacements", 0), 1);
  EXPECT_EQ(now["restarts"].value("total", 0), 1);
  EXPECT_EQ(pods_made(), 3);
  EXPECT_EQ(now["membership"].value("podsSince", 0), 1);
  expect_nothing_left();
}

}  // namespace
}  // namespace trainyard

// `trainyard run` as a user starts it, with real agents and ranks that train nothing
// (tests/support/fake_rank.cc).
#include <algorithm>
#include <filesystem>
#include <signal.h>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/paths.h"
#include "tests/support/run_fixture.h"

namespace trainyard {
namespace {

using ::testing::HasSubstr;
using testing_support::ChildEnd;
using testing_support::ChildProcess;
using testing_support::content_of;
using testing_support::RunFixture;

class RunTest : public RunFixture {};

TEST_F(RunTest, TrainsToTheEnd) {
  const auto run = start();
  expect_end(*run, 0);
  const Json end = summary();
  EXPECT_EQ(end.value("outcome", ""), "Complete");
  EXPECT_EQ(end.value("step", 0), 50);
  EXPECT_EQ(end.value("restarts", -1), 0);
  EXPECT_EQ(end.value("stateHash", ""), "fa4e50");
  EXPECT_DOUBLE_EQ(end.value("finalLoss", 0.0), 5.0 / 51);
  EXPECT_EQ(end.value("checkpointDir", ""), (run_dir() / "pvc/ckpt/tiny").string());
  EXPECT_EQ(status().value("phase", ""), "Complete");
  EXPECT_EQ(status()["goodput"]["badputSeconds"].value("infra", "0"), "0") << "nothing failed";
  EXPECT_GE(printed("progress").size(), 1u);
  expect_nothing_left();
  EXPECT_THAT(content_of(run_dir() / "history.jsonl"),
              HasSubstr("\"step\":50,\"reason\":\"Completed\""));
}

TEST_F(RunTest, WhatToDoNextCanBePastedWhateverItsNames) {
  std::filesystem::create_directory(folder() / "a yard's");
  const auto dir = folder() / "a yard's/run $1";
  ::setenv("DISPLAY", ":0", 1);  // NOLINT(concurrency-mt-unsafe): a screen, for xdg-open
  const ChildEnd end =
      trainyard({"run", (folder() / "job.yaml").string(), "--run-dir", dir.string()});
  ASSERT_EQ(end.exit_code, 0) << errors();
  const std::string next = output().substr(output().find("next:\n") + 6);
  ChildProcess::Spec spec;
  spec.argv = {"/bin/bash", "-c",
               "trainyard() { printf '<%s>' \"$@\"; }; xdg-open() { trainyard \"$@\"; }\n" + next};
  spec.output = folder() / "words";
  spec.errors = folder() / "words.err";
  ASSERT_EQ(ChildProcess(spec).wait(kDeadline).value_or(ChildEnd{}).exit_code, 0) << next;
  const std::string run = "<" + dir.string() + ">";
  EXPECT_EQ(content_of(folder() / "words"),
            "<sample>" + run + "<export>" + run + "<tiny-hf><run><" +
                (folder() / "job.yaml").string() + "><--run-dir>" + run + "<--steps><100>" +
                "<ckpt><ls>" + run + "<" + (dir / "report.html").string() + ">");
}

TEST_F(RunTest, AFinishedRunSaysSoAndTouchesNothing) {
  expect_end(*start(), 0);
  const std::string before = content_of(run_dir() / "status.json");
  expect_end(*start(), 0);
  EXPECT_THAT(printed("event").at(0).value("message", ""), HasSubstr("this run is over"));
  EXPECT_EQ(content_of(run_dir() / "status.json"), before);
  expect_nothing_left();
}

TEST_F(RunTest, ManyNodesAndRanks) {
  const auto run = start({{"FAKE_RANK_STEP_MS", "60"}}, {"--nodes", "3", "--procs", "2"});
  expect_end(*run, 0);
  const std::vector<Json> all = printed("progress");
  EXPECT_TRUE(
      std::any_of(all.begin(), all.end(), [](const Json& p) { return p.at("ranks").size() == 6; }));
  expect_nothing_left();
}

TEST_F(RunTest, WithinAPodOfTheOperatorItIsItsOwn) {
  const std::string junk = (folder() / "job.yaml").string();
  const auto run = start({{"TRAINYARD_CONTROL_TOKEN", junk},
                          {"TRAINYARD_CONTROL_AUTHORITIES", junk},
                          {"TRAINYARD_CONTROL_ADDRESS", "trainyard-control.elsewhere.svc:9443"},
                          {"TRAINYARD_TERMINATION_LOG", (folder() / "outer").string()},
                          {"TRAINYARD_STAYS", "1"},
                          {"TRAINYARD_HOST", "192.0.2.1"}});
  expect_end(*run, 0);
  EXPECT_EQ(summary().value("restarts", -1), 0);
  EXPECT_FALSE(std::filesystem::exists(folder() / "outer"));
}

TEST_F(RunTest, AKilledRankIsOneRestartAndTheRunCompletes) {
  const auto run = start({{"FAKE_RANK_FAULT", "1:25:kill"}});
  expect_end(*run, 0);
  EXPECT_EQ(summary().value("restarts", -1), 1);
  const Json now = status();
  EXPECT_EQ(now["restarts"].value("total", 0), 1);
  EXPECT_EQ(now["membership"].value("generation", 0), 2);
  ASSERT_GE(now["attempts"].size(), 1u);
  EXPECT_EQ(now["attempts"][0].value("signal", 0), SIGKILL) << now["attempts"].dump(1);
  EXPECT_EQ(now["attempts"][0].value("rank", -1), 1) << now["attempts"].dump(1);
  expect_nothing_left();
  // The picture of its report, as the README has one.
  ChildProcess::Spec spec;
  spec.argv = {"/bin/bash",
               "-c",
               "\"$1/tools/report_svg\" \"$2\" \"$3\" && python3 -c "
               "'import sys, xml.dom.minidom as x; x.parse(sys.argv[1])' \"$3\"",
               "bash",
               testing_support::source_folder(),
               run_dir().string(),
               (folder() / "report.svg").string()};
  spec.output = folder() / "svg.out";
  spec.errors = folder() / "svg.err";
  EXPECT_EQ(ChildProcess(spec).wait(kDeadline).value_or(ChildEnd{}).exit_code, 0)
      << content_of(folder() / "svg.err");
  EXPECT_THAT(content_of(folder() / "report.svg"), HasSubstr(">Restarting<"));
}

TEST_F(RunTest, ARankOfAnotherNodeIsOneRestartToo) {
  const auto run = start({{"FAKE_RANK_FAULT", "3:25:crash"}}, {"--nodes", "2"});
  expect_end(*run, 0);
  EXPECT_EQ(summary().value("restarts", -1), 1);
  EXPECT_EQ(status()["attempts"][0].value("exitCode", 0), 70) << status()["attempts"].dump(1);
  expect_nothing_left();
}

TEST_F(RunTest, AKilledAgentTakesItsRanksAlongAndIsOneRestart) {
  const auto run =
      start({{"FAKE_RANK_STEP_MS", "40"}, {"FAKE_RANK_STEPS", "150"}}, {"--nodes", "2"});
  ASSERT_TRUE(wait_until([&] { return checkpointed(10); })) << errors();
  const std::vector<pid_t> agents = running("trainyard-agent");
  ASSERT_EQ(agents.size(), 2u);
  ::kill(agents[0], SIGKILL);
  expect_end(*run, 0);
  EXPECT_EQ(summary().value("restarts", -1), 1);
  expect_nothing_left();
}

TEST_F(RunTest, ABadConfigurationFailsTheJobAtOnce) {
  const auto run = start({{"FAKE_RANK_FAULT", "0:5:config"}});
  expect_end(*run, 64);
  EXPECT_EQ(summary().value("outcome", ""), "Failed");
  EXPECT_THAT(summary().value("reason", ""), HasSubstr("FatalExitCode"));
  expect_nothing_left();
}

TEST_F(RunTest, AWrongManifestIsRefusedWithAllItsFaults) {
  write("bad.yaml",
        "apiVersion: trainyard.dev/v1alpha1\nkind: TrainingJob\n"
        "metadata: {name: tiny}\nspec: {numNodez: 2, engine: {steps: x}}\n");
  const auto run = start({}, {}, "bad.yaml");
  expect_end(*run, 64);
  EXPECT_THAT(errors(), HasSubstr("numNodez"));
  EXPECT_THAT(errors(), HasSubstr("engine.steps"));
  EXPECT_FALSE(std::filesystem::exists(run_dir()));
}

TEST_F(RunTest, AChangeOfWhatNeverChangesIsRefused) {
  expect_end(*start(), 0);
  std::string changed = kManifest;
  changed.replace(changed.find("hidden: 16"), 10, "hidden: 32");
  write("job.yaml", changed);
  expect_end(*start(), 64);
  EXPECT_THAT(errors(), HasSubstr("spec.engine.model"));
}

TEST_F(RunTest, TwoRunsOfOneDirectoryAreKeptApart) {
  const auto first = start({{"FAKE_RANK_STEP_MS", "40"}, {"FAKE_RANK_STEPS", "100000"}});
  ASSERT_TRUE(wait_until([&] { return checkpointed(10); })) << errors();
  ChildProcess::Spec spec;
  spec.argv = {testing_support::program_path("trainyard"), "run", (folder() / "job.yaml").string(),
               "--run-dir", run_dir().string()};
  spec.output = folder() / "out2";
  spec.errors = folder() / "err2";
  ChildProcess second(spec);
  const auto end = second.wait(kDeadline);
  ASSERT_TRUE(end);
  EXPECT_EQ(end->exit_code, 64);
  EXPECT_THAT(content_of(spec.errors), HasSubstr("lock"));
  first->signal(SIGINT);
  expect_end(*first, 75);
}

TEST_F(RunTest, CtrlCCheckpointsAndTheNextRunGoesOn) {
  const auto run = start(
      {{"FAKE_RANK_STEP_MS", "40"}, {"FAKE_RANK_STEPS", "100000"}, {"FAKE_RANK_EVERY", "1000000"}});
  ASSERT_TRUE(wait_until([&] { return step_shown() >= 5; })) << errors();
  run->signal(SIGINT);
  expect_end(*run, 75);
  EXPECT_EQ(summary().value("outcome", ""), "Stopped");
  EXPECT_TRUE(checkpointed(5));
  expect_nothing_left();

  // More steps than a slow machine made meanwhile.
  const auto again = start({{"FAKE_RANK_STEPS", "2000"}, {"FAKE_RANK_STEP_MS", "1"}});
  expect_end(*again, 0);
  EXPECT_TRUE(printed("start").at(0).value("resumed", false));
  EXPECT_EQ(summary().value("restarts", -1), 0) << "a stop is no restart";
  EXPECT_EQ(summary().value("step", 0), 2000);
  expect_nothing_left();
}

TEST_F(RunTest, ASecondCtrlCStopsAtOnce) {
  write("job.yaml", std::string(kManifest) + kMayStandStill);
  const auto run = start({{"FAKE_RANK_FAULT", "0:5:hang"}});
  ASSERT_TRUE(wait_until([&] {
    return std::filesystem::exists(run_dir() / "pvc/ckpt/tiny/fault-hang");
  })) << errors();
  run->signal(SIGINT);
  ASSERT_TRUE(wait_until([&] {
    const std::vector<Json> all = printed("event");
    return std::any_of(all.begin(), all.end(), [](const Json& event) {
      return event.value("message", "").find("a second Ctrl-C") != std::string::npos;
    });
  }));
  run->signal(SIGINT);
  expect_end(*run, 130);
  expect_nothing_left();
}

TEST_F(RunTest, AKilledRunIsTakenOverByTheNextWithoutDisturbingItsRanks) {
  auto run = start({{"FAKE_RANK_STEP_MS", "60"}, {"FAKE_RANK_STEPS", "180"}});
  ASSERT_TRUE(wait_until([&] { return checkpointed(10); })) << errors();
  const std::vector<pid_t> ranks = running("trainyard-fake-rank");
  ASSERT_EQ(ranks.size(), 2u);
  run->signal(SIGKILL);
  ASSERT_TRUE(run->wait(kDeadline));
  EXPECT_EQ(running("trainyard-fake-rank"), ranks) << "ranks outlive the run";

  run = start({{"FAKE_RANK_STEP_MS", "60"}, {"FAKE_RANK_STEPS", "180"}});
  ASSERT_TRUE(wait_until([&] {
    const std::vector<Json> all = printed("progress");
    return !all.empty() && all.back().value("step", 0) > 10;
  }));
  EXPECT_EQ(running("trainyard-fake-rank"), ranks) << "the same processes go on";
  expect_end(*run, 0);
  EXPECT_EQ(summary().value("restarts", -1), 0);
  EXPECT_EQ(summary().value("step", 0), 180);
  expect_nothing_left();
}

TEST_F(RunTest, WithoutAnotherRunTheOrphansCheckpointAndEnd) {
  auto run = start(
      {{"FAKE_RANK_STEP_MS", "40"}, {"FAKE_RANK_STEPS", "100000"}, {"FAKE_RANK_EVERY", "1000000"}});
  ASSERT_TRUE(wait_until([&] {
    const std::vector<Json> all = printed("progress");
    return !all.empty() && all.back().value("step", 0) >= 5;
  })) << errors();
  run->signal(SIGKILL);
  ASSERT_TRUE(run->wait(kDeadline));
  ASSERT_TRUE(wait_until([&] { return running().empty(); }));
  EXPECT_TRUE(checkpointed(5)) << "with a checkpoint";

  run = start({{"FAKE_RANK_STEPS", "300"}, {"FAKE_RANK_STEP_MS", "5"}});
  expect_end(*run, 0);
  EXPECT_EQ(summary().value("step", 0), 300);
  expect_nothing_left();
}

TEST_F(RunTest, AForeignProgramIsStartedOncePerProcessWithTorchrunsNames) {
  write("foreign.yaml", R"(
apiVersion: trainyard.dev/v1alpha1
kind: TrainingJob
metadata: {name: foreign}
spec:
  numNodes: 2
  numProcPerNode: 2
  template:
    spec:
      containers:
      - name: trainer
        image: none
        command: [sh, -c, 'echo "$RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_ADDR:$MASTER_PORT $FLAVOUR" > "$0/rank-$RANK"']
        args: [)" + folder().string() +
                            R"(]
        env: [{name: FLAVOUR, value: vanilla}]
)");
  const auto run = start({}, {}, "foreign.yaml");
  expect_end(*run, 0);
  EXPECT_EQ(content_of(folder() / "rank-0"), "0/4 0/2 127.0.0.1:29500 vanilla\n");
  EXPECT_EQ(content_of(folder() / "rank-3"), "3/4 1/2 127.0.0.1:29500 vanilla\n");
  expect_nothing_left();
}

TEST_F(RunTest, AForeignProgramHasTheVariablesOfItsOwnContainer) {
  write("foreign.yaml", R"(
apiVersion: trainyard.dev/v1alpha1
kind: TrainingJob
metadata: {name: foreign}
spec:
  template:
    spec:
      containers:
      - name: trainer
        image: none
        command: [sh, -c, 'echo "$FLAVOUR $TOPPING $TOKEN" > "$0/rank-$RANK"', ")" +
                            folder().string() +
                            R"("]
        env: [{name: FLAVOUR, value: vanilla}, {name: TOKEN, valueFrom: {secretKeyRef: {name: s, key: t}}}]
      - name: sidecar
        image: none
        env: [{name: FLAVOUR, value: mint}, {name: TOPPING, value: nuts}]
)");
  expect_end(*start({}, {}, "foreign.yaml"), 64);
  EXPECT_THAT(errors(), HasSubstr("spec.template.spec.containers[0].env[1] (TOKEN)"));
  expect_end(*start({{"TOKEN", "secret"}}, {}, "foreign.yaml"), 0);
  EXPECT_EQ(content_of(folder() / "rank-0"), "vanilla  secret\n");
  expect_nothing_left();
}

TEST_F(RunTest, AForeignProgramStartsAsItsContainerSays) {
  std::filesystem::create_directory(folder() / "work");
  const std::string work = std::filesystem::canonical(folder() / "work").string();
  write("vars", "COLOUR=$(FLAVOUR) red\n");
  write("foreign.yaml", R"yaml(
apiVersion: trainyard.dev/v1alpha1
kind: TrainingJob
metadata: {name: foreign}
spec:
  numNodes: 2
  template:
    spec:
      containers:
      - name: trainer
        image: none
        workingDir: ")yaml" +
                            work +
                            R"yaml("
        command: [sh, -c, 'echo "$(pwd) $DATA $P_COLOUR $0 $1 $2" > said-$RANK']
        args: ["$(RANK)/$(WORLD_SIZE)", "$$(DATA)", "$(NONE)"]
        envFrom: [{prefix: P_, configMapRef: {name: palette}}]
        env: [{name: BASE, value: /srv}, {name: DATA, value: "$(BASE)/data"}]
      - {name: sidecar, image: none}
)yaml");
  expect_end(*start({}, {}, "foreign.yaml"), 64);
  EXPECT_THAT(errors(),
              HasSubstr("spec.template.spec.containers[0].envFrom[0]: found \"palette\""));
  expect_end(*start({}, {"--env-from", "palette=" + (folder() / "vars").string()}, "foreign.yaml"),
             0);
  for (const char* const rank : {"0", "1"}) {
    EXPECT_EQ(content_of(folder() / "work" / (std::string("said-") + rank)),
              work + " /srv/data $(FLAVOUR) red " + rank + "/2 $(DATA) $(NONE)\n");
  }
  EXPECT_THAT(output(), HasSubstr("spec.template.spec.containers[1] (sidecar)"));
  expect_nothing_left();
}

}  // namespace
}  // namespace trainyard

// `trainyard run` among hostile circumstances: stopped agents, lost directories, wrong programs,
// closed outputs.
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <sys/stat.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/ledger_check.h"
#include "tests/support/paths.h"
#include "tests/support/run_fixture.h"
#include "tests/unit/worker/checkpoint/job_directory.h"

namespace trainyard {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing_support::ChildEnd;
using testing_support::ChildProcess;
using testing_support::content_of;
using testing_support::milliseconds_of;
using testing_support::RunFixture;
using testing_support::unix_milliseconds_of;

class RunFaultsTest : public RunFixture {
 protected:
  /// A shell's word on the run, for redirections and pipes: "$@" is the run.
  ChildEnd shell(const std::string& script) {
    ChildProcess::Spec spec;
    spec.argv = {"/bin/bash", "-c", script, "run"};
    const std::vector<std::string> run = arguments();
    spec.argv.insert(spec.argv.end(), run.begin(), run.end());
    spec.environment = environment();
    spec.output = folder() / "out";
    spec.errors = folder() / "err";
    return ChildProcess(spec).wait(kDeadline).value_or(ChildEnd{});
  }

  /// Nothing can take the place of status.json until unblock_status(), as on a full disk.
  void block_status() const {
    std::error_code taken;  // the run may write it once more in between
    do {
      std::filesystem::rename(run_dir() / "status.json", folder() / "kept.json");
      std::filesystem::create_directories(run_dir() / "status.json/in-the-way", taken);
    } while (taken);
  }
  void unblock_status() const {
    std::filesystem::remove_all(run_dir() / "status.json");
    std::filesystem::rename(folder() / "kept.json", run_dir() / "status.json");
  }

  /// The run ends by itself, with nothing left, and says why it could not be written down.
  void expect_not_recorded(ChildProcess& run) const {
    const auto end = run.wait(kDeadline);
    ASSERT_TRUE(end);
    EXPECT_EQ(end->exit_code, 75) << errors();
    EXPECT_EQ(summary().value("outcome", ""), "Stopped");
    EXPECT_THAT(summary().value("reason", ""), HasSubstr("status.json"));
    EXPECT_THAT(running(), IsEmpty());
  }

  void replace(const std::string& what, const std::string& with) const {
    std::string manifest = kManifest;
    manifest.replace(manifest.find(what), what.size(), with);
    write("job.yaml", manifest);
  }
};

// ---- What is stopped or lost while it runs
// -----------------------------------------------------------------------

TEST_F(RunFaultsTest, ARunDirectoryThatIsRemovedEndsTheRunAndItsRanks) {
  const auto run = start({{"FAKE_RANK_STEP_MS", "40"}, {"FAKE_RANK_STEPS", "100000"}});
  ASSERT_TRUE(wait_until([&] { return checkpointed(10); })) << errors();
  std::filesystem::rename(run_dir(), folder() / "elsewhere");
  expect_end(*run, 65);
  EXPECT_EQ(summary().value("outcome", ""), "Failed");
  EXPECT_THAT(summary().value("reason", ""), HasSubstr("was removed, moved or replaced"));
  EXPECT_THAT(running(), IsEmpty());
}

TEST_F(RunFaultsTest, WhatIsRemovedFromUnderARunIsPutBack) {
  const auto run = start({{"FAKE_RANK_STEP_MS", "20"}, {"FAKE_RANK_STEPS", "800"}});
  ASSERT_TRUE(wait_until([&] { return checkpointed(10); })) << errors();
  const std::vector<std::string> files = {"lock", "job.json", "engine.json",
                                          "checkpoint-policy.json"};
  for (const std::string& file : files)
    std::filesystem::remove(run_dir() / file);
  std::filesystem::remove_all(run_dir() / "control");
  ASSERT_TRUE(wait_until([&] {
    return output().find("ControlSocketRestored") != std::string::npos;
  })) << output();
  const ChildEnd second = trainyard(
      {"run", (folder() / "job.yaml").string(), "--run-dir", run_dir().string()}, "second.");
  EXPECT_EQ(second.exit_code, 64) << "the run is still alone without its lock file";
  EXPECT_THAT(content_of(folder() / "second.err"), HasSubstr("locked by"));

  const std::vector<pid_t> ranks = running("trainyard-fake-rank");
  ASSERT_EQ(ranks.size(), 2u);
  ::kill(ranks[0], SIGKILL);
  expect_end(*run, 0);
  EXPECT_EQ(summary().value("restarts", -1), 1) << output();
  for (size_t i = 1; i < files.size(); ++i)
    EXPECT_TRUE(std::filesystem::exists(run_dir() / files[i])) << files[i];
  expect_nothing_left();
}

TEST_F(RunFaultsTest, AStopThatCannotBeWrittenDownStillCheckpointsAndEnds) {
  const auto run = start({{"FAKE_RANK_STEP_MS", "400"}, {"FAKE_RANK_EVERY", "1000"}});
  ASSERT_TRUE(wait_until([&] { return step_printed() >= 5; })) << errors();
  block_status();
  run->signal(SIGINT);
  expect_not_recorded(*run);
  EXPECT_THAT(output(), HasSubstr("StopNotRecorded"));
  EXPECT_THAT(output(), Not(HasSubstr("stop with Ctrl-C"))) << "it would be the second";
  EXPECT_LT(summary().value("step", 50), 50);
  EXPECT_TRUE(checkpointed(5)) << "ranks heard of it all the same";
  unblock_status();
  expect_end(*start(), 0);
  EXPECT_EQ(summary().value("step", 0), 50);
  EXPECT_THAT(output(), HasSubstr("\"resumed\":true"));
  expect_nothing_left();
}

TEST_F(RunFaultsTest, AnEndThatCannotBeWrittenDownLetsOneCtrlCGo) {
  const auto run = start({{"FAKE_RANK_STEP_MS", "80"}, {"FAKE_RANK_STEPS", "100"}});
  ASSERT_TRUE(wait_until([&] { return step_shown() >= 5; })) << errors();
  block_status();
  ASSERT_TRUE(wait_until([&] { return running("trainyard-agent").empty(); }));
  ASSERT_TRUE(wait_until([&] {
    return output().find("the run retries until it works: fix that") != std::string::npos;
  })) << output();
  run->signal(SIGINT);
  expect_not_recorded(*run);
  unblock_status();
  expect_end(*start({{"FAKE_RANK_STEPS", "100"}}), 0);
  EXPECT_EQ(summary().value("step", 0), 100);
  EXPECT_EQ(summary().value("restarts", -1), 0) << "its ranks had left word of their ends";
  expect_nothing_left();
}

TEST_F(RunFaultsTest, AKilledRunLeavesNothingOutsideOfItsDirectory) {
  const auto run = start({{"FAKE_RANK_STEP_MS", "40"}, {"FAKE_RANK_STEPS", "100000"}});
  ASSERT_TRUE(wait_until([&] { return step_printed() >= 5; })) << errors();
  run->signal(SIGKILL);
  ASSERT_TRUE(run->wait(kDeadline));
  ASSERT_TRUE(wait_until([&] { return running().empty(); }));
  EXPECT_TRUE(std::filesystem::is_empty(temporary()));
}

TEST_F(RunFaultsTest, ALongRunDirectoryIsNoObstacle) {
  const auto long_dir = folder() / std::string(100, 'x') / std::string(100, 'y');
  const ChildEnd end = trainyard(
      {"run", (folder() / "job.yaml").string(), "--run-dir", long_dir.string(), "-o", "json"});
  EXPECT_EQ(end.exit_code, 0) << output() << errors();
  expect_nothing_left();
}

TEST_F(RunFaultsTest, ARankAskedToEndEndsWithACheckpointAndIsAPreemption) {
  const auto run =
      start({{"FAKE_RANK_STEP_MS", "40"}, {"FAKE_RANK_STEPS", "150"}, {"FAKE_RANK_EVERY", "1000"}});
  ASSERT_TRUE(wait_until([&] { return step_shown() >= 5; })) << errors();
  const std::vector<pid_t> ranks = running("trainyard-fake-rank");
  ASSERT_EQ(ranks.size(), 2u);
  ::kill(ranks[0], SIGTERM);
  expect_end(*run, 0);
  const Json now = status();
  EXPECT_EQ(now["restarts"].value("total", 0), 1);
  EXPECT_EQ(now["restarts"]["classes"][0].value("class", ""), "Preemption");
  EXPECT_EQ(now["attempts"][0].value("exitCode", 0), 143) << now["attempts"].dump(1);
  expect_nothing_left();
}

TEST_F(RunFaultsTest, AnAgentAskedToEndHasItsRanksCheckpoint) {
  const auto run =
      start({{"FAKE_RANK_STEP_MS", "40"}, {"FAKE_RANK_STEPS", "150"}, {"FAKE_RANK_EVERY", "1000"}});
  ASSERT_TRUE(wait_until([&] { return step_shown() >= 5; })) << errors();
  const std::vector<pid_t> agents = running("trainyard-agent");
  ASSERT_EQ(agents.size(), 1u);
  ::kill(agents[0], SIGTERM);
  expect_end(*run, 0);
  const Json now = status();
  EXPECT_EQ(now["restarts"].value("total", 0), 1);
  EXPECT_EQ(now["attempts"][0].value("exitCode", 0), 143) << now["attempts"].dump(1);
  EXPECT_GE(now["attempts"][0].value("resumedFromStep", 0), 5) << now["attempts"].dump(1);
  expect_nothing_left();
}

TEST_F(RunFaultsTest, TheKernelsKillForWantOfMemoryIsNamed) {
  // Under load it takes a while to fill the memory.
  write("job.yaml", std::string(kManifest) + kMayStandStill);
  const ChildEnd end =
      shell("export FAKE_RANK_FAULT=1:25:oom; exec " +
            testing_support::source_path("tests/process/run/memory_group.sh") + " \"$@\"");
  if (end.exit_code == 99) GTEST_SKIP() << errors();
  EXPECT_EQ(end.exit_code, 0) << output() << errors();
  const Json attempt = status()["attempts"][0];
  EXPECT_EQ(attempt.value("signal", 0), SIGKILL) << attempt.dump(1);
  EXPECT_THAT(attempt.value("message", ""), HasSubstr("memory ran out")) << attempt.dump(1);
  EXPECT_EQ(attempt.value("class", ""), "Application") << attempt.dump(1);
  expect_nothing_left();
}

// ---- What is wrong from the start
// --------------------------------------------------------------------------------

TEST_F(RunFaultsTest, WhatRanksWouldRefuseIsRefusedBeforeThereIsARun) {
  const std::vector<std::array<std::string, 4>> cases = {
      {"sequenceLength: 16", "sequenceLength: 4096", "maxPositions: 16", "maxPositions: 4096"},
      {"globalSequences: 12", "globalSequences: 100000", "microSequences: 2", "microSequences: 1"},
      {"vocab: 257", "vocab: 16", "", ""},
      {"hidden: 16", "hidden: 65536", "layers: 1", "layers: 4096"},
  };
  for (const auto& [a, b, c, d] : cases) {
    std::string manifest = kManifest;
    manifest.replace(manifest.find(a), a.size(), b);
    if (!c.empty()) manifest.replace(manifest.find(c), c.size(), d);
    write("job.yaml", manifest);
    expect_end(*start(), 64);
    EXPECT_THAT(errors(), HasSubstr("found ")) << b;
    EXPECT_THAT(errors(), HasSubstr("wanted ")) << b;
    EXPECT_FALSE(std::filesystem::exists(run_dir())) << b;
  }
  replace("data/train", "data/nowhere");
  expect_end(*start(), 65);
  EXPECT_THAT(errors(), HasSubstr("data/nowhere"));
  EXPECT_FALSE(std::filesystem::exists(run_dir()));
}

TEST_F(RunFaultsTest, TooFewOpenFilesAreRefusedAndAsManyAsSaidAreEnough) {
  const auto limited = [&](const std::string& limit) {
    return shell("ulimit " + limit + " && exec \"$@\" --nodes 2 --procs 4").exit_code;
  };
  EXPECT_EQ(limited("-n 59"), 64);
  EXPECT_THAT(errors(), HasSubstr("found 59 (ulimit -Hn), wanted at least 60 for 2 x 4 ranks"));
  EXPECT_FALSE(std::filesystem::exists(run_dir()));
  EXPECT_EQ(limited("-n 60"), 0) << errors();
  EXPECT_EQ(summary().value("restarts", -1), 0);
  std::filesystem::remove_all(run_dir());
  EXPECT_EQ(limited("-Sn 30"), 0) << errors();  // the soft one is ours to raise
  expect_nothing_left();
}

TEST_F(RunFaultsTest, LimitsThatNothingCouldRunUnderAreNamedAtOnce) {
  EXPECT_EQ(shell("ulimit -f 100 && exec \"$@\"").exit_code, 64);
  EXPECT_THAT(errors(),
              HasSubstr("limit of file size: found 100 KiB (ulimit -f), wanted at least"));
  replace("hidden: 16", "hidden: 512");
  EXPECT_EQ(shell("ulimit -f 16384 && exec \"$@\"").exit_code, 64);
  EXPECT_THAT(errors(), HasSubstr("for a rank's part of a checkpoint; raise it"));
  EXPECT_EQ(shell("ulimit -v 400000 && exec \"$@\"").exit_code, 64);
  EXPECT_THAT(errors(), HasSubstr("limit of address space: found 400000 KiB (ulimit -v), wanted"));
  EXPECT_FALSE(std::filesystem::exists(run_dir()));
}

TEST_F(RunFaultsTest, ProgramsThatCannotRunAreNamedAtOnce) {
  write("garbage", "neither");
  std::filesystem::permissions(folder() / "garbage", std::filesystem::perms::owner_all);
  for (const std::string& worker :
       {(folder() / "garbage").string(), (folder() / "none").string(), folder().string()}) {
    expect_end(*start({{"TRAINYARD_WORKER", worker}}), 64);
    EXPECT_THAT(errors(), HasSubstr("trainyard-worker " + worker));
    EXPECT_FALSE(std::filesystem::exists(run_dir()));
  }
}

TEST_F(RunFaultsTest, AProgramThatIsNoWorkerFailsTheJobAtOnce) {
  for (const std::string& worker : {std::string("/bin/true"), (folder() / "script").string()}) {
    write("script", "#!/bin/no/such/interpreter\n");
    std::filesystem::permissions(folder() / "script", std::filesystem::perms::owner_all);
    expect_end(*start({{"TRAINYARD_WORKER", worker}}, {"--retry"}), 64);
    EXPECT_THAT(summary().value("reason", ""), HasSubstr(worker));
    EXPECT_EQ(summary().value("restarts", -1), 0);
    expect_nothing_left();
  }
}

TEST_F(RunFaultsTest, WhatCannotBeARunDirectoryIsAWrongUsage) {
  write("file", "x");
  const ChildEnd end = trainyard(
      {"run", (folder() / "job.yaml").string(), "--run-dir", (folder() / "file").string()});
  EXPECT_EQ(end.exit_code, 64);
  EXPECT_THAT(errors(), HasSubstr("is not a directory"));
  // The system makes nothing there, whoever asks; as on a disk without room.
  const ChildEnd nowhere = trainyard(
      {"run", (folder() / "job.yaml").string(), "--run-dir", "/proc/trainyard/run", "-o", "json"});
  EXPECT_EQ(nowhere.exit_code, 64);
  EXPECT_THAT(errors(), HasSubstr("run directory /proc/trainyard/run: "));
  EXPECT_THAT(errors(), HasSubstr("name another directory (--run-dir)"));
}

TEST_F(RunFaultsTest, APipeInPlaceOfAFileIsNamedAndNotWaitedFor) {
  expect_end(*start(), 0);
  for (const std::string file : {"status.json", "job.json", "events.jsonl", "run.log"}) {
    std::filesystem::rename(run_dir() / file, folder() / "kept");
    ASSERT_EQ(::mkfifo((run_dir() / file).c_str(), 0600), 0);
    const auto run = start();
    const auto end = run->wait(kDeadline);
    ASSERT_TRUE(end) << file;
    EXPECT_EQ(end->exit_code, 64) << file;
    EXPECT_THAT(errors(), HasSubstr(file + ": found a pipe"));
    std::filesystem::rename(folder() / "kept", run_dir() / file);
  }
}

TEST_F(RunFaultsTest, ADamagedStatusIsNamedAndNothingIsLost) {
  expect_end(*start(), 0);
  std::ofstream(run_dir() / "status.json") << "rubbish";
  expect_end(*start(), 65);
  EXPECT_THAT(errors(), HasSubstr("status.json: damaged: no JSON at byte 1"));
  EXPECT_THAT(errors(), Not(HasSubstr("nlohmann")));
  EXPECT_TRUE(checkpointed(50));
}

TEST_F(RunFaultsTest, AJobThatIsDamagedOrGoneIsNamedAndWhatItCountedStays) {
  expect_end(*start({{"FAKE_RANK_FAULT", "0:25:config"}}), 64);
  const std::string job = content_of(run_dir() / "job.json");
  const std::string counted = content_of(run_dir() / "status.json");
  for (const std::string& rubbish : {std::string(), std::string("rubbish"), std::string("{}")}) {
    write("run/job.json", rubbish);
    expect_end(*start(), 65);
    EXPECT_THAT(errors(), HasSubstr("job.json: damaged: "));
    EXPECT_THAT(errors(), Not(HasSubstr("damaged: :")));
    EXPECT_THAT(errors(), HasSubstr("put back a copy of it"));
    EXPECT_EQ(trainyard({"ckpt", "ls", run_dir().string()}, "ls").exit_code, 65);
  }
  std::filesystem::remove(run_dir() / "job.json");
  expect_end(*start(), 65);
  EXPECT_THAT(errors(), HasSubstr("job.json: found nothing, wanted the job \""));
  EXPECT_EQ(content_of(run_dir() / "status.json"), counted);
  write("run/status.json", "what nobody understands is not written over");
  expect_end(*start(), 65);
  EXPECT_THAT(errors(), HasSubstr("status.json: damaged: "));
  write("run/status.json", R"({"uid": "x", "version": 1, "status": []})");
  expect_end(*start(), 65);
  EXPECT_THAT(errors(), HasSubstr("status.json: damaged: "));
  write("run/status.json", counted);
  write("run/job.json", job);
  expect_end(*start({}, {"--retry"}), 0);
}

TEST_F(RunFaultsTest, WhereThereIsNothingToRetryThatIsSaid) {
  expect_end(*start({}, {"--retry"}), 0);
  EXPECT_THAT(printed("event").at(0).value("message", ""), HasSubstr("there is no run to retry"));
}

TEST_F(RunFaultsTest, AFailedRunGoesOnOnceItIsMended) {
  expect_end(*start({{"FAKE_RANK_FAULT", "0:25:config"}}), 64);
  expect_end(*start(), 64);
  EXPECT_THAT(printed("event").at(0).value("message", ""), HasSubstr("--retry"));
  const Json failed = status();

  expect_end(*start({}, {"--retry"}), 0);
  EXPECT_THAT(printed("event").at(0).value("message", ""), HasSubstr("retrying"));
  EXPECT_TRUE(printed("start").at(0).value("resumed", false));
  EXPECT_EQ(summary().value("step", 0), 50);
  EXPECT_EQ(summary().value("restarts", -1), 0);
  expect_nothing_left();
  // What went before stays in the books; the time in between is nobody's.
  const Json now = status();
  EXPECT_EQ(now.value("startTime", ""), failed.value("startTime", "-"));
  EXPECT_EQ(milliseconds_of(now["goodput"].value("stoppedSeconds", "")),
            unix_milliseconds_of(now.value("lastResumeTime", "")).value_or(-1) -
                unix_milliseconds_of(failed.value("completionTime", "")).value_or(-1));
  EXPECT_GT(milliseconds_of(now["goodput"].value("wallSeconds", "")),
            milliseconds_of(failed["goodput"].value("wallSeconds", "")));
}

TEST_F(RunFaultsTest, ACorrectedManifestTakesUpAFailedRun) {
  expect_end(*start({{"FAKE_RANK_FAULT", "0:25:config"}}), 64);
  replace("everySteps: 10", "everySteps: 20");
  expect_end(*start(), 0);
  EXPECT_EQ(summary().value("step", 0), 50);
}

// ---- What the summary of a killed run says
// ---------------------------------------------------------------------------------------

TEST_F(RunFaultsTest, ACheckpointThatNoRankToldOfIsTheNewestAllTheSame) {
  write("job.yaml", std::string(kManifest) + kMayStandStill);
  const auto run = start({{"FAKE_RANK_FAULT", "0:5:hang"}});
  ASSERT_TRUE(wait_until([&] { return std::filesystem::exists(checkpoints() / "fault-hang"); }))
      << errors();
  const Json job = Json::parse(content_of(run_dir() / "job.json"));
  checkpoint::testing::JobDirectory committed(checkpoints(),
                                              job["metadata"].value("uid", std::string()));
  checkpoint::PosixFileSystem files;
  ASSERT_EQ(committed.train(files, {.steps = {40}}), "");
  run->signal(SIGTERM);
  ASSERT_TRUE(wait_until([&] { return output().find("a second Ctrl-C") != std::string::npos; }));
  run->signal(SIGTERM);
  expect_end(*run, 130);
  EXPECT_EQ(summary().value("checkpointStep", 0), 40);
  EXPECT_EQ(summary().value("step", 0), 40);
}

// ---- Where its output goes
// ---------------------------------------------------------------------------------------

TEST_F(RunFaultsTest, AReaderThatLeavesDoesNotStopTheRun) {
  const ChildEnd end = shell("set -o pipefail; \"$@\" | head -n 1");
  EXPECT_EQ(end.exit_code, 0) << errors();
  EXPECT_EQ(status().value("phase", ""), "Complete");
  EXPECT_THAT(errors(), HasSubstr("the run continues"));
  expect_nothing_left();
}

TEST_F(RunFaultsTest, LostOutputIsSaid) {
  EXPECT_EQ(shell("\"$@\" > /dev/full").exit_code, 74);
  EXPECT_EQ(status().value("phase", ""), "Complete");
  EXPECT_THAT(errors(), HasSubstr("standard output could not be written"));
  for (const std::string& command : {"data show '" + (folder() / "data").string() + "'",
                                     std::string("--version"), std::string("--help")}) {
    EXPECT_EQ(shell("\"$1\" " + command + " > /dev/full").exit_code, 74) << command;
  }
}

TEST_F(RunFaultsTest, ProgramsThatARunStartsSayWhatTheyAre) {
  for (const std::string program : {"trainyard-agent", "trainyard-worker"}) {
    const std::string path = testing_support::program_path(program);
    const auto asked = [&](const std::string& rest) {
      return shell("'" + path + "' " + rest).exit_code;
    };
    EXPECT_EQ(asked("--help | grep -q '^Usage: " + program + "'"), 0);
    EXPECT_EQ(asked("--version | grep -q '^" + program + " [0-9]'"), 0);
    EXPECT_EQ(asked("--help > /dev/full"), 74);
  }
}

}  // namespace
}  // namespace trainyard

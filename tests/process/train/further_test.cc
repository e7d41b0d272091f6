// A finished run goes on: in its own directory with more steps, or as another job that starts from
// one of its checkpoints; with real ranks.
#include <csignal>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/byte_vocabulary.h"
#include "tests/support/paths.h"
#include "tests/support/run_fixture.h"

namespace trainyard {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;
using testing_support::content_of;
using testing_support::program_path;
using testing_support::RunFixture;

/// What one run differs in from another.
struct Wanted {
  int steps = 20;
  int horizon = 40;
  int shard = 1;
  int seed = 7;
  int hidden = 32;
  int ranks = 2;
  std::string start;  ///< the lines of startFrom
  int patience = 0;   ///< of early stopping; then no evaluation but the first can be the best
  std::string end;    ///< the last lines
};

class FurtherTest : public RunFixture {
 protected:
  static std::string manifest(const Wanted& wanted) {
    return R"(
apiVersion: trainyard.dev/v1alpha1
kind: TrainingJob
metadata: {name: tiny}
spec:
  numNodes: 1
  numProcPerNode: )" +
           std::to_string(wanted.ranks) + R"(
  engine:
    model: {family: GPT2, layers: 1, hidden: )" +
           std::to_string(wanted.hidden) + R"(, heads: 2, maxPositions: 16}
    data: {tokens: [data/train], sequenceLength: 16)" +
           std::string(wanted.patience > 0 ? ", validation: [data/train]" : "") + R"(}
    batch: {globalSequences: 4}
    steps: )" +
           std::to_string(wanted.steps) + R"(
    seed: )" +
           std::to_string(wanted.seed) +
           R"(
    optimizer: {learningRate: 3.0e-3}
    learningRateSchedule: {name: Cosine, warmupSteps: 4, horizonSteps: )" +
           std::to_string(wanted.horizon) + R"(}
    parallelism: {zeroStage: )" +
           std::string(wanted.shard > 1 ? "3" : "0") + R"(}
)" +
           (wanted.patience > 0
                ? "    evaluation: {everySteps: 4, earlyStopDelta: 1000, earlyStopPatience: " +
                      std::to_string(wanted.patience) + "}\n"
                : std::string()) +
           wanted.start +
           R"(  checkpointPolicy: {storage: {persistentVolumeClaim: {claimName: ckpt}}, everySteps: 10}
)" + wanted.end;
  }

  using ChildProcess = testing_support::ChildProcess;

  std::unique_ptr<ChildProcess> begin(const std::string& run, const Wanted& wanted,
                                      const std::vector<std::string>& options = {}) {
    write("job.yaml", manifest(wanted));
    ChildProcess::Spec spec;
    spec.argv = {program_path("trainyard"),
                 "run",
                 (folder() / "job.yaml").string(),
                 "--run-dir",
                 dir(run),
                 "-o",
                 "json"};
    spec.argv.insert(spec.argv.end(), options.begin(), options.end());
    spec.environment = environment({{"TRAINYARD_WORKER", program_path("trainyard-worker")}});
    spec.output = folder() / (run + ".out");
    spec.errors = folder() / (run + ".err");
    return std::make_unique<ChildProcess>(spec);
  }
  /// The exit status of a run in the directory `run` of the folder; its output in RUN.out.
  int train(const std::string& run, const Wanted& wanted,
            const std::vector<std::string>& options = {}) {
    return begin(run, wanted, options)
        ->wait(kDeadline)
        .value_or(testing_support::ChildEnd{})
        .exit_code;
  }
  /// Trains to the end, though `trainyard run` is killed on the way.
  void train_unwatched(const std::string& run, const Wanted& wanted) {
    const auto any_checkpoint = [&] {
      std::error_code none;
      for (const auto& entry : fs::directory_iterator(folder() / run / "pvc/ckpt/tiny", none)) {
        if (entry.path().filename().string().find("-step-") != std::string::npos) return true;
      }
      return false;
    };
    constexpr int kTries = 5;
    for (int tries = 0; tries < kTries; ++tries) {
      fs::remove_all(folder() / run);
      const auto child = begin(run, wanted);
      ASSERT_TRUE(wait_until(any_checkpoint)) << err(run);
      child->signal(SIGKILL);
      ASSERT_TRUE(child->wait(kDeadline));
      ASSERT_TRUE(wait_until([&] { return running().empty(); }));
      fs::remove_all(folder() / run / "control");
      const bool was_watched = status_of(run).value("phase", "") == "Complete";
      if (!was_watched && checkpoint_of(run, wanted.steps) != "none") return;
    }
    FAIL() << "killed too late, or too early for its ranks to come to the end, each time";
  }

  std::string dir(const std::string& run) const { return (folder() / run).string(); }
  std::string out(const std::string& run) const { return content_of(folder() / (run + ".out")); }
  std::string err(const std::string& run) const { return content_of(folder() / (run + ".err")); }

  Json summary_of(const std::string& run) const {
    const std::string text = out(run);
    const size_t at = text.find("{\"type\":\"summary\"");
    return at == std::string::npos ? Json::object() : Json::parse(text.substr(at), nullptr, false);
  }
  Json status_of(const std::string& run) const {
    return Json::parse(content_of(folder() / run / "status.json"))["status"];
  }
  std::string hash_of(const std::string& run) const {
    return summary_of(run).value("stateHash", "none of " + run);
  }

  /// The only checkpoint of that step.
  std::string checkpoint_of(const std::string& run, int step) const {
    std::string number = std::to_string(step);
    number.insert(0, 10 - number.size(), '0');
    for (const auto& entry : fs::directory_iterator(folder() / run / "pvc/ckpt/tiny")) {
      if (entry.path().filename().string().ends_with("-step-" + number)) return entry.path();
    }
    return "none";
  }

  std::string start_from(const std::string& checkpoint, const std::string& what) const {
    return "    startFrom: {checkpoint: " + checkpoint + ", what: " + what + "}\n";
  }
};

TEST_F(FurtherTest, ARunMadeLongerIsTheLongerRun) {
  ASSERT_EQ(train("whole", {.steps = 40}), 0) << err("whole");
  ASSERT_EQ(train("run", {.steps = 20}), 0) << err("run");
  EXPECT_NE(hash_of("run"), hash_of("whole"));
  ASSERT_EQ(train("run", {.steps = 40, .shard = 3, .ranks = 3}), 0) << err("run");
  EXPECT_EQ(hash_of("run"), hash_of("whole"));
  EXPECT_EQ(summary_of("run").value("step", 0), 40);
  EXPECT_EQ(summary_of("run").value("restarts", -1), 0);
  EXPECT_THAT(out("run"), HasSubstr("this run was complete; training it further"));
  EXPECT_THAT(out("run"), Not(HasSubstr("horizonSteps")));
  ASSERT_EQ(train("run", {.steps = 44}), 0) << err("run");
  EXPECT_THAT(out("run"), HasSubstr("found 40 with 44 steps"));

  const std::string before = content_of(folder() / "run/status.json");
  EXPECT_EQ(train("run", {.steps = 30}), 64);
  EXPECT_THAT(err("run"), HasSubstr("raise engine.steps above 44 to train it further"));
  EXPECT_EQ(content_of(folder() / "run/status.json"), before);
  expect_nothing_left();
}

TEST_F(FurtherTest, ARunThatEndedUnwatchedIsWhatItWasStartedFor) {
  const Wanted was = {.steps = 120, .horizon = 240};
  ASSERT_NO_FATAL_FAILURE(train_unwatched("run", was));
  for (const char* copy : {"again", "longer", "shorter", "wider"})
    fs::copy(folder() / "run", folder() / copy, fs::copy_options::recursive);

  ASSERT_EQ(train("run", was), 0) << err("run");
  const Json status = status_of("run");
  EXPECT_EQ(summary_of("run").value("step", 0), 120);
  EXPECT_EQ(summary_of("run").value("checkpointStep", 0), 120);
  EXPECT_EQ(status["checkpoint"]["lastStep"], 120) << status.dump(1);
  EXPECT_EQ(status["progress"]["step"], 120) << status.dump(1);
  EXPECT_EQ(status["progress"].value("phase", ""), "Done");
  EXPECT_EQ(std::stod(status["progress"].value("loss", "0")),
            summary_of("run").value("finalLoss", -1.0));
  EXPECT_TRUE(fs::exists(folder() / "run/result.json"));
  const Json live = Json::parse(content_of(folder() / "run/live.json"));
  EXPECT_EQ(live.value("step", 0), 120);
  EXPECT_EQ(live.value("checkpointStep", 0), 120) << live.dump(1);
  EXPECT_TRUE(live.value("over", false));

  ASSERT_EQ(train("again", was, {"--retry"}), 0) << err("again");
  EXPECT_EQ(hash_of("again"), hash_of("run"));
  EXPECT_EQ(status_of("again")["checkpoint"]["lastStep"], 120);
  EXPECT_EQ(Json::parse(content_of(folder() / "again/live.json")).value("step", 0), 120);

  EXPECT_EQ(train("shorter", {.steps = 80, .horizon = 240}), 64);
  EXPECT_THAT(err("shorter"), HasSubstr("raise engine.steps above 120 to train it further"));
  EXPECT_EQ(train("wider", {.steps = 120, .horizon = 240, .ranks = 1}), 64);
  EXPECT_THAT(err("wider"), HasSubstr("holds a finished run of another manifest"));

  ASSERT_EQ(train("whole", {.steps = 160, .horizon = 240}), 0) << err("whole");
  ASSERT_EQ(train("longer", {.steps = 160, .horizon = 240}), 0) << err("longer");
  EXPECT_THAT(out("longer"), HasSubstr("this run was complete; training it further"));
  ASSERT_EQ(train("wider", {.steps = 160, .horizon = 240, .shard = 3, .ranks = 3}), 0)
      << err("wider");
  for (const char* run : {"longer", "wider"}) {
    EXPECT_EQ(hash_of(run), hash_of("whole")) << run;
    EXPECT_EQ(summary_of(run).value("step", 0), 160) << run;
    EXPECT_EQ(status_of(run)["checkpoint"]["lastStep"], 160) << run;
    EXPECT_EQ(summary_of(run).value("restarts", -1), 0) << run;
  }
  expect_nothing_left();
}

TEST_F(FurtherTest, WithoutAGoodCheckpointACompleteRunStaysComplete) {
  ASSERT_EQ(train("run", {.steps = 20}), 0) << err("run");
  const std::string before = content_of(folder() / "run/status.json");
  for (const auto& entry : fs::recursive_directory_iterator(folder() / "run/pvc")) {
    if (entry.path().filename().string().starts_with("shard-")) fs::resize_file(entry.path(), 100);
  }
  EXPECT_EQ(train("run", {.steps = 40}), 65);
  EXPECT_THAT(
      err("run"),
      HasSubstr("found no good checkpoint from which the complete run can be trained further"));
  EXPECT_EQ(content_of(folder() / "run/status.json"), before);
  EXPECT_TRUE(fs::exists(folder() / "run/result.json"));
  expect_nothing_left();
}

TEST_F(FurtherTest, WithoutAGoodCheckpointARunThatStoppedEarlyStaysComplete) {
  ASSERT_EQ(train("run", {.patience = 2}), 0) << err("run");
  const std::string before = content_of(folder() / "run/status.json");
  for (const auto& entry : fs::recursive_directory_iterator(folder() / "run/pvc")) {
    if (entry.path().filename().string().starts_with("shard-")) fs::resize_file(entry.path(), 100);
  }
  const int stopped = summary_of("run").value("step", 0);
  ASSERT_GT(stopped, 0);
  for (const Wanted& wanted : {Wanted{.steps = stopped, .patience = 3}, Wanted{.patience = 3}}) {
    EXPECT_EQ(train("run", wanted), 65) << wanted.steps;
    EXPECT_THAT(
        err("run"),
        HasSubstr("found no good checkpoint from which the complete run can be trained further"));
  }
  EXPECT_EQ(content_of(folder() / "run/status.json"), before);
  EXPECT_TRUE(fs::exists(folder() / "run/result.json"));
  expect_nothing_left();
}

TEST_F(FurtherTest, AStatusInTheManifestIsOfAnotherRun) {
  const std::string status =
      "status: {conditions: [{type: Complete, status: \"True\", reason: x, "
      "lastTransitionTime: \"2026-01-01T00:00:00Z\"}]}\n";
  ASSERT_EQ(train("run", {.steps = 20, .end = status}), 0) << err("run");
  EXPECT_EQ(summary_of("run").value("step", 0), 20);
  expect_nothing_left();
}

TEST_F(FurtherTest, WithoutAHorizonThatTheLearningRateJumpsIsSaid) {
  ASSERT_EQ(train("run", {.steps = 20, .horizon = 0}), 0) << err("run");
  ASSERT_EQ(train("run", {.steps = 40, .horizon = 0}), 0) << err("run");
  EXPECT_THAT(out("run"), HasSubstr("up to step 20 the learning rate fell over 20 steps, from "
                                    "here on it falls over 40: the learning rate jumps from "
                                    "0.000326 to 0.00188, and "));
  EXPECT_THAT(out("run"), HasSubstr("the learning rate is 0.00188 at step 21 and 0.000305 at step "
                                    "40"));
  expect_nothing_left();
}

TEST_F(FurtherTest, StepsOfTheCommandLineCountInPlaceOfTheManifests) {
  ASSERT_EQ(train("whole", {.steps = 40}), 0) << err("whole");
  ASSERT_EQ(train("run", {.steps = 20}), 0) << err("run");
  ASSERT_EQ(train("run", {.steps = 20}, {"--steps", "40"}), 0) << err("run");
  EXPECT_EQ(hash_of("run"), hash_of("whole"));
  EXPECT_EQ(summary_of("run").value("step", 0), 40);
  EXPECT_THAT(out("run"), HasSubstr("this run was complete; training it further"));
  EXPECT_THAT(out("run"), HasSubstr("the learning rate is 0.00188 at step 21 and 0.000305 at step "
                                    "40"));
  // Without them the manifest asks for fewer.
  EXPECT_EQ(train("run", {.steps = 20}), 64);
  EXPECT_THAT(err("run"), HasSubstr("use --steps or raise engine.steps above 40 to train it"));
  // Behind the end of its schedule.
  ASSERT_EQ(train("run", {.steps = 20}, {"--steps", "60"}), 0) << err("run");
  EXPECT_THAT(out("run"), HasSubstr("the learning rate is 0.0003 at step 41 and 0.0003 at step "
                                    "60"));
  EXPECT_THAT(out("run"), HasSubstr("from step 40 on the learning rate stays at 0.0003; with "
                                    "horizonSteps: 60 it would rise to 0.00106 and fall again: "
                                    "for that, stop the run, set horizonSteps"));
  EXPECT_EQ(train("other", {.steps = 20, .horizon = 0}, {"--steps", "3"}), 64);
  EXPECT_THAT(err("other"), HasSubstr("(--steps counts in place of engine.steps)"));
  expect_nothing_left();
}

TEST_F(FurtherTest, AnotherJobGoesOnFromAStateAndNeedsItOnce) {
  ASSERT_EQ(train("whole", {.steps = 40}), 0) << err("whole");
  ASSERT_EQ(train("first", {.steps = 20}), 0) << err("first");
  const std::string state = start_from(checkpoint_of("first", 20), "State");
  ASSERT_EQ(train("second", {.steps = 30, .shard = 2, .start = state}), 0) << err("second");
  fs::remove_all(folder() / "first");
  ASSERT_EQ(train("second", {.steps = 40, .start = state}), 0) << err("second");
  EXPECT_EQ(hash_of("second"), hash_of("whole"));
  EXPECT_EQ(train("second", {.steps = 50}), 64) << "startFrom can be neither added nor removed";
  EXPECT_THAT(err("second"), HasSubstr("spec.engine.startFrom: differs"));
  EXPECT_NE(train("third", {.start = state}), 0) << "it has no checkpoint of its own";
  EXPECT_THAT(err("third"), HasSubstr("engine.startFrom.checkpoint"));
  expect_nothing_left();
}

TEST_F(FurtherTest, WeightsAloneBeginAnew) {
  ASSERT_EQ(train("first", {.steps = 40}), 0) << err("first");
  ASSERT_EQ(train("fresh", {.steps = 4, .seed = 8}), 0) << err("fresh");
  const std::string weights = start_from(checkpoint_of("first", 40), "Weights");
  ASSERT_EQ(train("second", {.steps = 4, .seed = 8, .start = weights}), 0) << err("second");
  EXPECT_EQ(summary_of("second").value("step", 0), 4);
  EXPECT_LT(summary_of("second").value("finalLoss", 1e9),
            summary_of("fresh").value("finalLoss", 0.0) - 0.1);

  // As many tokens, but other ones; then more, of which the model's vocabulary follows.
  for (const unsigned bytes : {253U, 256U}) {
    write("tokenizer.json", testing_support::small_tokenizer_json(bytes).dump());
    fs::remove_all(folder() / "data");
    ASSERT_EQ(
        trainyard({"data", "prepare", (folder() / "text.txt").string(), "--tokenizer",
                   (folder() / "tokenizer.json").string(), "--out", (folder() / "data").string()},
                  "prepare-")
            .exit_code,
        0)
        << content_of(folder() / "prepare-err");
    EXPECT_EQ(train("third", {.steps = 4, .start = weights}), 64);
    EXPECT_THAT(err("third"), HasSubstr("engine.data.tokens: tokenizer: found gpt2-bpe ("));
    EXPECT_THAT(err("third"),
                HasSubstr("wanted bytes (749d21c2a2f44dae367e90697101348e) as in the"));
  }
  expect_nothing_left();
}

TEST_F(FurtherTest, WhatDoesNotFitIsNamedBeforeAnythingRuns) {
  ASSERT_EQ(train("first", {.steps = 20}), 0) << err("first");
  const std::string checkpoint = checkpoint_of("first", 20);
  const std::string folder_of_all = fs::path(checkpoint).parent_path().string();
  struct Refused {
    Wanted wanted;
    std::string says;
  };
  for (const Refused& refused : std::vector<Refused>{
           {{.seed = 8, .start = start_from(checkpoint, "State")},
            "engine.seed: found 8, wanted 7 as in the checkpoint"},
           {{.seed = 8, .start = start_from(checkpoint, "State")}, "what: Weights"},
           {{.hidden = 64, .start = start_from(checkpoint, "Weights")},
            "engine.model.hidden: found 64, wanted 32"},
           {{.steps = 10, .start = start_from(checkpoint, "State")}, "wanted at least 20"},
           {{.start = start_from(folder_of_all, "State")},
            "found a job's checkpoints, wanted one of them, such as " + checkpoint}}) {
    EXPECT_EQ(train("second", refused.wanted), 64) << refused.says << err("second");
    EXPECT_THAT(err("second"), HasSubstr(refused.says));
    EXPECT_FALSE(fs::exists(folder() / "second/job.json"));
  }
  expect_nothing_left();
}

TEST_F(FurtherTest, ARunThatHasStoppedEarlyIsComplete) {
  ASSERT_EQ(train("run", {.patience = 2}), 0) << err("run");
  const Json summary = summary_of("run");
  EXPECT_EQ(summary.value("step", 0), 12);
  EXPECT_TRUE(summary.value("stoppedEarly", false));
  EXPECT_EQ(summary["best"].value("step", 0), 4);
  EXPECT_EQ(summary["best"].value("checkpoint", ""),
            fs::path(checkpoint_of("run", 4)).filename().string());
  EXPECT_THAT(out("run"),
              HasSubstr("1 node, generation 1; stopped early at step 12 of 20; the best "
                        "model is g1-step-0000000004"));
  ASSERT_EQ(train("run", {.patience = 2}), 0) << err("run");
  EXPECT_EQ(summary_of("run").value("step", 0), 12) << "the same command trains no further";
  EXPECT_EQ(train("run", {.patience = 1}), 64);
  EXPECT_THAT(err("run"), HasSubstr("or engine.evaluation.earlyStopPatience"));
  ASSERT_EQ(train("run", {.patience = 3}), 0) << err("run");
  EXPECT_EQ(summary_of("run").value("step", 0), 16);
  expect_nothing_left();
}

}  // namespace
}  // namespace trainyard

// A node that is asked to stop while all ranks evaluate for minutes.
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/paths.h"
#include "tests/support/run_fixture.h"

namespace trainyard {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using testing_support::content_of;

// Half a million windows of held-out text: an evaluation takes many times what a stop may take.
// Both ranks hold parts of the weights, so neither can stop alone.
constexpr char kLongEvaluation[] = R"(
apiVersion: trainyard.dev/v1alpha1
kind: TrainingJob
metadata: {name: tiny}
spec:
  numNodes: 2
  numProcPerNode: 1
  engine:
    model: {family: GPT2, layers: 2, hidden: 256, heads: 4, vocab: 257, maxPositions: 16}
    data: {tokens: [data/train], validation: [long/train], sequenceLength: 16}
    batch: {globalSequences: 4, microSequences: 2}
    steps: 1000
    evaluation: {everySteps: 2, sequences: 500000}
    parallelism: {zeroStage: 3}
  checkpointPolicy: {storage: {persistentVolumeClaim: {claimName: ckpt}}, everySteps: 1000}
  failurePolicy: {backoff: {initialSeconds: 1, maxSeconds: 2}}
  progressPolicy: {maxStallSeconds: 3600}
)";

class EvaluationStopTest : public testing_support::RunFixture {};

TEST_F(EvaluationStopTest, ANodeAskedToStopEndsWithAllRanksWithinItsGrace) {
  write("long.txt", testing_support::varied_text(size_t{8} << 20));
  const auto prepared = trainyard(
      {"data", "prepare", (folder() / "long.txt").string(), "--out", (folder() / "long").string()});
  ASSERT_EQ(prepared.exit_code, 0) << errors();
  write("job.yaml", kLongEvaluation);
  const auto run = start({{"TRAINYARD_WORKER", testing_support::program_path("trainyard-worker")},
                          {"TRAINYARD_FAULT", "0:1:evaluating:agent-term"}});
  ASSERT_TRUE(wait_until([&] { return status().value("attempts", Json::array()).size() == 1; }))
      << output() << errors();
  ASSERT_TRUE(wait_until([&] { return status()["attempts"][0].contains("resumedFromStep"); }))
      << status().dump(1) << errors();
  const Json attempt = status()["attempts"][0];
  EXPECT_EQ(attempt.value("class", ""), "Preemption") << attempt.dump(1);
  EXPECT_EQ(attempt.value("exitCode", 0), 143) << attempt.dump(1);
  EXPECT_EQ(attempt.value("resumedFromStep", 0), 2) << attempt.dump(1);
  run->signal(SIGINT);
  expect_end(*run, 75);
  EXPECT_EQ(summary().value("outcome", ""), "Stopped");
  for (const auto& entry : std::filesystem::recursive_directory_iterator(run_dir())) {
    if (entry.path().extension() == ".log") {
      EXPECT_THAT(content_of(entry.path()), Not(HasSubstr("within their grace"))) << entry.path();
    }
  }
  expect_nothing_left();
}

}  // namespace
}  // namespace trainyard

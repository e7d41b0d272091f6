// One rank gets a SIGTERM from outside. All ranks write the checkpoint and end alike; it is told,
// and replaced, who was asked.
#include <filesystem>
#include <string>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/paths.h"
#include "tests/support/run_fixture.h"

namespace trainyard {
namespace {

using ::testing::HasSubstr;

constexpr char kHead[] = R"(
apiVersion: trainyard.dev/v1alpha1
kind: TrainingJob
metadata: {name: tiny}
spec:
  numNodes: 2
  numProcPerNode: 2
  engine:
    model: {family: GPT2, layers: 1, hidden: 32, heads: 2, maxPositions: 16}
    data: {tokens: [data/train], sequenceLength: 16}
    batch: {globalSequences: 8, microSequences: 2}
    steps: 12
    runtime: {threads: 1}
  failurePolicy: {backoff: {initialSeconds: 1, maxSeconds: 2}, restartStrategy: )";
constexpr char kStorage[] =
    "  checkpointPolicy: {storage: {persistentVolumeClaim: {claimName: ckpt}}}\n";

class AskedToEndTest : public testing_support::RunFixture,
                       public ::testing::WithParamInterface<std::tuple<std::string, int>> {
 protected:
  void expect_named(const std::string& storage) {
    const auto& [strategy, rank] = GetParam();
    write("job.yaml", kHead + strategy + "}\n" + storage);
    std::filesystem::remove_all(run_dir());
    const auto run = start({{"TRAINYARD_WORKER", testing_support::program_path("trainyard-worker")},
                            {"TRAINYARD_FAULT", std::to_string(rank) + ":1:7.3:term"}});
    expect_end(*run, 0);
    const Json now = status();
    const Json attempt = now["attempts"][0];
    const std::string words = "rank " + std::to_string(rank) + " was asked to end by a SIGTERM";
    EXPECT_EQ(attempt.value("rank", -1), rank) << attempt.dump(1);
    EXPECT_EQ(attempt.value("class", ""), "Preemption") << attempt.dump(1);
    EXPECT_THAT(attempt.value("message", ""), HasSubstr(words));
    EXPECT_THAT(attempt.value("podName", ""), HasSubstr("tiny-" + std::to_string(rank / 2) + "-"));
    EXPECT_EQ(now["restarts"].value("total", 0), 1);
    EXPECT_EQ(now["restarts"].value("podReplacements", -1), strategy == "ReplacePod" ? 1 : 0);
    EXPECT_EQ(now["restarts"].value("inPlace", -1), strategy == "InPlace" ? 1 : 0);
    const std::string report = testing_support::content_of(run_dir() / "report.html");
    EXPECT_NE(report.find(words), std::string::npos);
    expect_nothing_left();
  }
};

TEST_P(AskedToEndTest, TheRightRankIsNamed) { expect_named(kStorage); }

TEST_P(AskedToEndTest, AlsoWhereNothingIsWritten) {
  const auto& [strategy, rank] = GetParam();
  if (rank == 0 || rank == 3) expect_named("");
}

INSTANTIATE_TEST_SUITE_P(Strategies, AskedToEndTest,
                         ::testing::Combine(::testing::Values("RecreateAll", "ReplacePod",
                                                              "InPlace"),
                                            ::testing::Range(0, 4)),
                         [](const auto& one) {
                           return std::get<0>(one.param) + "Rank" +
                                  std::to_string(std::get<1>(one.param));
                         });

}  // namespace
}  // namespace trainyard

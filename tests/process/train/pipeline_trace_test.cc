// What a traced run of a pipeline shows of its waits.
#include <algorithm>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/paths.h"
#include "tests/support/run_fixture.h"

namespace trainyard {
namespace {

using ::testing::HasSubstr;

class PipelineTraceTest : public testing_support::RunFixture {};

TEST_F(PipelineTraceTest, WaitsForStagesAreInTraceReportAndLiveState) {
  std::string manifest = testing_support::content_of(folder() / "job.yaml");
  const auto replace = [&](const std::string& what, const std::string& with) {
    ASSERT_NE(manifest.find(what), std::string::npos) << manifest;
    manifest.replace(manifest.find(what), what.size(), with);
  };
  replace("layers: 1", "layers: 3");
  replace("    steps:", "    parallelism: {pipeline: 3}\n    steps:");
  write("job.yaml", manifest);
  const auto run = start({{"TRAINYARD_WORKER", testing_support::program_path("trainyard-worker")}},
                         {"--trace=3", "--procs", "3"});  // which counts, not the manifest's 2
  expect_end(*run, 0);

  const Json trace =
      Json::parse(testing_support::content_of(run_dir() / "trace.json"), nullptr, false);
  std::set<std::pair<int, std::string>> kinds;  // by rank
  std::set<std::pair<int, std::string>> tracks;
  for (const Json& event : trace["traceEvents"]) {
    if (event["ph"] == "X") kinds.emplace(event["pid"], event["cat"]);
    if (event["name"] == "thread_name") tracks.emplace(event["pid"], event["args"]["name"]);
  }
  for (const int rank : {0, 1, 2}) {
    EXPECT_TRUE(kinds.contains({rank, "pipeline_wait"})) << rank;
    // The first and the last stage hold a table together.
    EXPECT_EQ(tracks.contains({rank, "collectives (tied tables)"}), rank != 1) << rank;
    EXPECT_EQ(tracks.contains({rank, "activations in"}), rank != 0) << rank;
    EXPECT_EQ(tracks.contains({rank, "gradients in"}), rank != 2) << rank;
  }
  const std::string report = testing_support::content_of(run_dir() / "report.html");
  EXPECT_THAT(report, HasSubstr(", measured: bubble "));
  EXPECT_THAT(report, HasSubstr(" %, planned "));
  EXPECT_THAT(report, HasSubstr("pipeline, OneFOneB: 1 ("));
  EXPECT_THAT(report, HasSubstr("planned bubble, the part of a step in which ranks wait: "));
  EXPECT_THAT(report, HasSubstr("<tr><td>2</td><td>2</td><td>"));
  EXPECT_THAT(report, HasSubstr("<title>F, forward: micro-batch 0, "));
  const Json live =
      Json::parse(testing_support::content_of(run_dir() / "live.json"), nullptr, false);
  EXPECT_EQ(live["pipelineStages"], 3);
  EXPECT_GT(live["ranks"][1]["stageNanoseconds"].value("pipeline_wait", 0), 0) << live;
}

}  // namespace
}  // namespace trainyard

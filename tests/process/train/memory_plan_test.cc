// A rank in a control group with hardly more memory than its plan says.
#include <filesystem>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/worker_contract.h"
#include "tests/support/paths.h"
#include "tests/support/run_fixture.h"

namespace trainyard {
namespace {

using testing_support::ChildEnd;
using testing_support::ChildProcess;

class MemoryPlanTest : public testing_support::RunFixture {
 protected:
  /// One step of 24 small layers, in micro-batches of one sequence: what is kept per layer and
  /// micro-batch would outgrow all the rest.
  Json engine(int micro_batches) const {
    return {
        {"model",
         {{"layers", 24}, {"hidden", 32}, {"heads", 4}, {"vocab", 257}, {"maxPositions", 16}}},
        {"data",
         {{"tokens", Json::array({(folder() / "data/train").string()})}, {"sequenceLength", 4}}},
        {"batch", {{"globalSequences", micro_batches}, {"microSequences", 1}}},
        {"runtime", {{"threads", 1}}},
        {"steps", 1}};
  }

  int64_t planned_bytes(const Json& engine) const {
    const Json storage = {{"persistentVolumeClaim", {{"claimName", "ckpt"}}}};
    const Json job = {{"apiVersion", "trainyard.dev/v1alpha1"},
                      {"kind", "TrainingJob"},
                      {"metadata", {{"name", "tiny"}}},
                      {"spec", {{"engine", engine}, {"checkpointPolicy", {{"storage", storage}}}}}};
    write("job.yaml", job.dump());
    const ChildEnd end = trainyard({"plan", (folder() / "job.yaml").string(), "-o", "json"});
    EXPECT_EQ(end.exit_code, 0) << errors();
    const Json plan = Json::parse(output(), nullptr, false);
    for (const Json& stage : plan.value("stages", Json::array())) {
      if (stage["zeroStage"] == plan["zeroStage"]) return stage.value("totalBytes", int64_t{0});
    }
    ADD_FAILURE() << output();
    return 0;
  }

  ChildEnd train_in_group(const Json& engine, int64_t bytes) const {
    write("engine.json", engine.dump());
    ChildProcess::Spec spec;
    spec.argv = {testing_support::source_path("tests/process/run/memory_group.sh"),
                 testing_support::program_path("trainyard-worker")};
    spec.environment = environment({{"MEMORY_GROUP_BYTES", std::to_string(bytes)},
                                    {contract::kEnvEngineConfig, folder() / "engine.json"},
                                    {contract::kEnvCheckpointDir, folder() / "checkpoints"}});
    spec.output = folder() / "out";
    spec.errors = folder() / "err";
    return ChildProcess(spec).wait(kDeadline).value_or(ChildEnd{});
  }
};

TEST_F(MemoryPlanTest, JobsOfAnyNumberOfMicroBatchesRunInTheirPlanAndATwentieth) {
  for (const int micro_batches : {1, 64, 4096}) {
    const Json job = engine(micro_batches);
    const int64_t planned = planned_bytes(job);
    ASSERT_GT(planned, 0);
    const ChildEnd end = train_in_group(job, planned + planned / 20);
    if (end.exit_code == 99) GTEST_SKIP() << errors();
    EXPECT_EQ(end.signal, 0) << micro_batches;
    EXPECT_EQ(end.exit_code, 0) << micro_batches << errors();
    EXPECT_THAT(errors(), ::testing::HasSubstr("checkpoint committed")) << micro_batches;
    std::filesystem::remove_all(folder() / "checkpoints");
  }
}

}  // namespace
}  // namespace trainyard

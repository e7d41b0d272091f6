#include "common/api/decode.h"

#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/api/encode.h"
#include "common/api/reference.h"
#include "common/api/validate.h"
#include "tests/support/paths.h"
#include "tests/unit/common/api/bad_manifest.h"

namespace trainyard::api {
namespace {

using testing::HasSubstr;

std::string valid_text() {
  std::string text;
  for (const std::string& line : valid_manifest())
    text += line + '\n';
  return text;
}

/// A folder that goes with the test.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = testing::TempDir() + "decode_test.XXXXXX";
    path_ = mkdtemp(pattern.data());
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

TEST(DecodeTest, ValidManifestHasNoFault) {
  EXPECT_EQ(error_of(check_training_job(valid_text()).faults).message, "");
}

TEST(DecodeTest, AllFaultsComeAtOnceInLineOrder) {
  const CheckedJob checked = check_training_job(
      "apiVersion: trainyard.dev/v1alpha1\n"
      "kind: TrainingJob\n"
      "metadata: {name: Bad_Name}\n"
      "spec:\n"
      "  numNodes: 0\n"
      "  engine:\n"
      "    model: {preset: gpt2-3m}\n"
      "    data: {tokens: [a], shuffle: yes}\n"
      "    batch: {globalSequences: many}\n"
      "  keepFailedPod: 1\n",
      {.file = "job.yaml"});
  EXPECT_EQ(
      error_of(checked.faults).message,
      "job.yaml:3: metadata.name: found \"Bad_Name\", wanted a lower-case letter, then at most "
      "56 lower-case letters, digits and '-', no '-' at the end\n"
      "job.yaml:5: spec.numNodes: found 0, wanted a number from 1 to 65536\n"
      "job.yaml:6: spec.engine.steps: found nothing, wanted a value: Optimizer steps of the "
      "whole run\n"
      "job.yaml:8: spec.engine.data.shuffle: found yes, wanted true or false, or quotes around "
      "it where it is text\n"
      "job.yaml:9: spec.engine.batch.globalSequences: found \"many\", wanted a whole number\n"
      "job.yaml:10: spec.keepFailedPod: found an unknown key, wanted keepFailedPods");
}

TEST(DecodeTest, JsonManifestMeansTheSame) {
  const Result<TrainingJob> yaml = decode_training_job(valid_text());
  ASSERT_TRUE(yaml.has_value()) << yaml.error().message;
  const Result<TrainingJob> json = decode_training_job(encode_training_job(*yaml));
  ASSERT_TRUE(json.has_value()) << json.error().message;
  EXPECT_EQ(*json, *yaml);
}

TEST(DecodeTest, EngineAloneIsAJobNamedAfterItsFile) {
  const CheckedJob checked = check_training_job(
      "engine:\n"
      "  model: {preset: gpt2-3m}\n"
      "  data: {tokens: [a]}\n"
      "  batch: {globalSequences: 8}\n"
      "  steps: 100\n",
      {.file = "runs/My Engine_2.yaml"});
  EXPECT_EQ(error_of(checked.faults).message, "");
  EXPECT_EQ(checked.job.metadata.name, "my-engine-2");
  EXPECT_EQ(checked.job.spec.engine->steps, 100);
  EXPECT_EQ(error_of(validate(checked.job)).message, "");
}

TEST(DecodeTest, EngineAloneNamesFieldsFromItsTop) {
  const CheckedJob checked =
      check_training_job("engine: {model: {preset: gpt2-3m}, steps: -1}", {.file = "e.yaml"});
  EXPECT_EQ(error_of(checked.faults).message,
            "e.yaml:1: engine.data: found nothing, wanted a value: Training and validation data\n"
            "e.yaml:1: engine.batch: found nothing, wanted a value: Batch sizes\n"
            "e.yaml:1: engine.steps: found -1, wanted a number from 1 to 1000000000000");
}

TEST(DecodeTest, DocumentsThatAreNoJobSayWhatIsWanted) {
  const auto message = [](std::string_view text) {
    return error_of(check_training_job(text, {.file = "f"}).faults).message;
  };
  EXPECT_EQ(message(""), "f:1: found nothing, wanted a TrainingJob");
  EXPECT_EQ(message("# only a comment\n"), "f:1: found nothing, wanted a TrainingJob");
  EXPECT_EQ(message("[1, 2]"), "f:1: found a list, wanted a mapping");
  EXPECT_EQ(message("job"), "f:1: found \"job\", wanted a mapping");
  EXPECT_THAT(message(std::string(kMaxManifestBytes + 1, ' ')), HasSubstr("at most 1048576 bytes"));
}

TEST(DecodeTest, StatusOfANewerControllerIsRead) {
  const Result<TrainingJob> job =
      decode_training_job(valid_text() + "status: {observedGeneration: 4, sparkle: {a: 1}}\n");
  ASSERT_TRUE(job.has_value()) << job.error().message;
  EXPECT_EQ(job->status.observed_generation, 4);
}

TEST(DecodeTest, UnknownKeysCanBeIgnored) {
  const std::string text = valid_text() + "    turbo: true\n";
  EXPECT_FALSE(decode_training_job(text).has_value());
  EXPECT_TRUE(decode_training_job(text, {.unknown_keys = UnknownKeys::kIgnore}).has_value());
}

TEST(DecodeTest, BrokenStatusIsDataNotConfiguration) {
  const Result<TrainingJobStatus> status = decode_status("{\"observedGeneration\": \"x\"}");
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().code, ErrorCode::kInvalidData);
  EXPECT_EQ(status.error().message,
            "status:1: observedGeneration: found \"x\", wanted a whole number");
  EXPECT_FALSE(decode_status("{\"observedGeneration\": 1").has_value());
}

TEST(DecodeTest, CheckpointPolicyObeysItsBounds) {
  const Result<CheckpointPolicy> policy = decode_checkpoint_policy("{\"keepLast\": 0}");
  ASSERT_FALSE(policy.has_value());
  EXPECT_EQ(policy.error().code, ErrorCode::kInvalidConfig);
  EXPECT_THAT(policy.error().message, HasSubstr("keepLast: found 0, wanted a number from 1"));
}

TEST(LoadTest, PathsAreTakenFromTheManifestsFolder) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder.path() / "jobs");
  std::ofstream(folder.path() / "jobs/job.yaml")
      << "engine:\n  model: {import: ../hf}\n"
         "  data: {tokens: [a.tokens, /abs/b.tokens], tokenizer: ../tok}\n"
         "  batch: {globalSequences: 1}\n  steps: 1\n  export: {huggingFace: out}\n";
  const Result<TrainingJob> job = load_training_job(folder.path() / "jobs/job.yaml");
  ASSERT_TRUE(job.has_value()) << job.error().message;
  const EngineSpec& engine = *job->spec.engine;
  const std::string base = folder.path().string();
  EXPECT_EQ(engine.data.tokens[0], base + "/jobs/a.tokens");
  EXPECT_EQ(engine.data.tokens[1], "/abs/b.tokens");
  EXPECT_EQ(engine.data.tokenizer, base + "/tok");
  EXPECT_EQ(engine.model.import_path, base + "/hf");
  EXPECT_EQ(engine.export_to.hugging_face, base + "/jobs/out");
}

TEST(LoadTest, MissingFilesAndFoldersAreErrors) {
  const TemporaryFolder folder;
  const Result<TrainingJob> missing = load_training_job(folder.path() / "none.yaml");
  ASSERT_FALSE(missing.has_value());
  EXPECT_EQ(missing.error().code, ErrorCode::kInvalidConfig);
  EXPECT_FALSE(load_training_job(folder.path()).has_value());
}

TEST(ValidateTest, SeesWhatWasChangedAfterDecoding) {
  Result<TrainingJob> job = decode_training_job(valid_text());
  ASSERT_TRUE(job.has_value()) << job.error().message;
  job->spec.num_nodes = 3;
  job->spec.num_proc_per_node = 3;
  const std::vector<Fault> faults = validate(*job, "--procs");
  ASSERT_EQ(faults.size(), 1U);
  EXPECT_EQ(to_string(faults[0]),
            "--procs: spec.engine.batch.globalSequences: found 8, wanted at least 1 sequence for "
            "each of the 9 data-parallel ranks");
}

TEST(ValidateTest, AnElasticJobMayBeScaledBelowItsSuccessPolicy) {
  Result<TrainingJob> job = decode_training_job(valid_text());
  ASSERT_TRUE(job.has_value()) << job.error().message;
  job->spec.num_nodes = 2;
  job->spec.success_policy.rules = {{"0,3", std::nullopt}, {"", 4}};
  EXPECT_EQ(validate(*job).size(), 2U);
  job->spec.elastic_policy.emplace();
  EXPECT_TRUE(validate(*job).empty());
}

TEST(ValidateTest, TheShardOfAnElasticJobFollowsItsRanks) {
  Result<TrainingJob> job = decode_training_job(valid_text());
  ASSERT_TRUE(job.has_value()) << job.error().message;
  job->spec.num_nodes = 3;
  job->spec.engine->parallelism.shard = 2;
  EXPECT_EQ(validate(*job).size(), 1U);
  job->spec.elastic_policy.emplace();
  EXPECT_TRUE(validate(*job).empty());
}

TEST(ValidateTest, AnElasticJobIsJudgedAtTheSizeItStartsWith) {
  Result<TrainingJob> job = decode_training_job(valid_text());
  ASSERT_TRUE(job.has_value()) << job.error().message;
  job->spec.num_nodes = 10;
  job->spec.engine->batch = {.global_sequences = 12, .micro_sequences = 1};
  job->spec.engine->parallelism = {
      .pipeline = 2, .pipeline_schedule = PipelineSchedule::kInterleaved, .chunks_per_stage = 2};
  EXPECT_EQ(validate(*job).size(), 1U) << "5 data-parallel ranks have 3 micro-batches each";
  job->spec.elastic_policy.emplace();
  EXPECT_TRUE(validate(*job).empty()) << "6 nodes are taken";
  job->spec.elastic_policy->min_nodes = 7;
  EXPECT_EQ(validate(*job).size(), 1U) << "8 nodes have 3 micro-batches as well";
}

TEST(ValidateTest, LongListsAreRefused) {
  Result<TrainingJob> job = decode_training_job(valid_text());
  ASSERT_TRUE(job.has_value()) << job.error().message;
  for (int i = 0; i < 21; ++i) {
    job->spec.failure_policy.rules.push_back({.name = "rule" + std::to_string(i),
                                              .action = RuleAction::kFailJob,
                                              .on_exit_codes = OnExitCodes{.values = {1}}});
  }
  PodTemplate& pod = job->spec.pod_template.emplace();
  for (int i = 0; i < 17; ++i) {
    pod.containers.push_back({.name = i == 0 ? "trainer" : "c" + std::to_string(i), .image = "x"});
  }
  pod.containers[0].env.resize(257, {.name = "A"});
  std::string message = error_of(validate(*job)).message;
  EXPECT_THAT(message, HasSubstr("failurePolicy.rules: found 21 items, wanted at most 20 items"));
  EXPECT_THAT(message, HasSubstr("containers: found 17 containers, wanted at most 16 containers"));
  pod.containers.resize(16);
  message = error_of(validate(*job)).message;
  EXPECT_THAT(message, HasSubstr("containers[0].env: found 257 items, wanted at most 256 items"));
}

/// What an image without a command runs nobody but the container runtime knows.
TEST(ValidateTest, WhatTheAgentStartsMustBeNamed) {
  const auto faults_of = [](const std::string& fields, const std::string& container) {
    const auto job = decode_training_job(R"({"apiVersion":"trainyard.dev/v1alpha1",
      "kind":"TrainingJob","metadata":{"name":"a"},"spec":{)" +
                                         fields + R"("template":{"spec":{"containers":[{)" +
                                         container + R"("image":"i"}]}}}})");
    return job ? std::string() : job.error().message;
  };
  constexpr char kField[] =
      "spec.template.spec.containers[0].command: found nothing, wanted the "
      "command, which the agent starts once per process";
  for (const char* many : {R"("numProcPerNode":2,)", R"("numProcPerNode":"auto",)"}) {
    EXPECT_THAT(faults_of(many, R"("name":"main",)"), HasSubstr(kField)) << many;
    EXPECT_THAT(faults_of(many, R"("name":"trainer",)"), HasSubstr(kField)) << many;
    EXPECT_EQ(faults_of(many, R"("name":"main","command":["x"],)"), "") << many;
    EXPECT_EQ(faults_of(std::string(many) + R"("agent":"None",)", R"("name":"main",)"), "") << many;
  }
  EXPECT_EQ(faults_of("", R"("name":"main",)"), "") << "one process is the container's own";
}

TEST(ValidateTest, EveryDocumentedVariableIsReserved) {
  for (const char* name : {"PET_NNODES", "MASTER_ADDR", "WORLD_SIZE", "RANK", "LOCAL_RANK",
                           "TORCHELASTIC_RUN_ID", "JAX_PROCESS_ID", "KUBEFLOW_TRAINER_SERVER_URL",
                           "TRAINYARD_JOB", "TRAINYARD_CHECKPOINT_DIR"}) {
    EXPECT_TRUE(is_reserved_env(name)) << name;
  }
  EXPECT_FALSE(is_reserved_env("PATH"));
  EXPECT_FALSE(is_reserved_env("RANKS"));
}

TEST(ValidateTest, IndexesAreAscendingRanges) {
  using Ranges = std::vector<IndexRange>;
  EXPECT_EQ(parse_indexes("0"), (Ranges{{0, 0}}));
  EXPECT_EQ(parse_indexes("0-3,7"), (Ranges{{0, 3}, {7, 7}}));
  for (const char* bad : {"", "-1", "1-", "1-1", "3-1", "0,0", "2,1", "0-3,3", "a", "0,", " 0",
                          "99999999999999999999"}) {
    EXPECT_FALSE(parse_indexes(bad).has_value()) << bad;
  }
}

TEST(NearestNameTest, MeansWhatWasMistyped) {
  const std::vector<std::string_view> names = {"numNodes", "numProcPerNode", "engine"};
  EXPECT_EQ(nearest_name("numnodes", names), "numNodes");
  EXPECT_EQ(nearest_name("numProcsPerNode", names), "numProcPerNode");
  EXPECT_EQ(nearest_name("engien", names), "engine");
  EXPECT_EQ(nearest_name("replicas", names), "");
  EXPECT_EQ(nearest_name(std::string(100000, 'x'), names), "");
}

TEST(ReferenceTest, CheckedInPageIsTheGeneratedOne) {
  std::ifstream file(testing_support::source_path("docs/reference/trainingjob.md"));
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(page, reference_page())
      << "run: trainyard reference trainingjob > docs/reference/trainingjob.md";
}

}  // namespace
}  // namespace trainyard::api

#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

#include "common/api/decode.h"
#include "common/api/encode.h"
#include "common/api/rules.h"
#include "common/text/document.h"
#include "tests/support/paths.h"
#include "tests/unit/common/api/field_walker.h"

namespace trainyard::api {
namespace {

std::string read_fixture(const std::string& name) {
  std::ifstream file(testing_support::source_path("tests/unit/common/api/fixtures/" + name));
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

/// The paths of all keys of a tree, list items without an index.
void collect_paths(const text::Node& node, const std::string& path, std::set<std::string>& paths) {
  for (const text::Node& item : node.items)
    collect_paths(item, path, paths);
  for (const text::Member& member : node.members) {
    const std::string inner = text::join_path(path, member.key);
    paths.insert(inner);
    collect_paths(member.value, inner, paths);
  }
}

TEST(FieldTableTest, EveryFieldHasANameAndASentence) {
  int fields = 0;
  for_each_field([&](const std::string& path, const Field& field, auto) {
    ++fields;
    EXPECT_FALSE(field.name.empty()) << path;
    EXPECT_GE(field.description.size(), 10U) << path;
    EXPECT_TRUE(field.description.ends_with('.')) << path;
    EXPECT_TRUE(std::isupper(static_cast<unsigned char>(field.description[0]))) << path;
  });
  EXPECT_GT(fields, 200);
}

TEST(FieldTableTest, SecondsStandInNamesAndDescriptions) {
  for_each_field([&](const std::string& path, const Field& field, auto) {
    if (field.name.find("Seconds") == std::string_view::npos) return;
    const std::string description(field.description);
    EXPECT_TRUE(description.find("econds") != std::string::npos) << path << ": " << description;
  });
}

TEST(FieldTableTest, EveryFieldStandsInTheFullManifest) {
  // These exclude what the full manifest has, or wait for a version to come.
  const std::set<std::string> elsewhere = {
      "spec.engine.model.import",
      "spec.engine.precision.lossScale",
      "spec.engine.precision.reduce",
      "spec.scheduling.topology.key",
  };
  std::set<std::string> written;
  collect_paths(text::parse_yaml(read_fixture("full.yaml")).root, "", written);
  for_each_field([&](const std::string& path, const Field&, auto) {
    EXPECT_NE(written.contains(path), elsewhere.contains(path)) << path;
  });
}

TEST(FullManifestTest, DecodesWithoutAFault) {
  const CheckedJob checked = check_training_job(read_fixture("full.yaml"), {.file = "full.yaml"});
  EXPECT_EQ(error_of(checked.faults).message, "");
}

TEST(FullManifestTest, EveryValueReachesItsMember) {
  // Encoding what was decoded and decoding it again loses nothing; and every key of the manifest
  // but the unread ones, empty and unwritten values and the opaque template is in the encoded form.
  const std::string manifest = read_fixture("full.yaml");
  const Result<TrainingJob> job = decode_training_job(manifest);
  ASSERT_TRUE(job.has_value()) << job.error().message;
  std::set<std::string> before;
  std::set<std::string> after;
  collect_paths(text::parse_yaml(manifest).root, "", before);
  collect_paths(text::parse_json(encode_training_job(*job)).root, "", after);
  for (const char* empty :
       {"metadata.managedFields", "spec.checkpointPolicy.memoryReplicas", "spec.engine.device",
        "spec.engine.parallelism.contextMode", "spec.engine.parallelism.offload",
        "spec.scheduling.queue", "spec.scheduling.topology"}) {
    EXPECT_EQ(before.erase(empty), 1U) << empty;
  }
  EXPECT_EQ(before, after);
}

TEST(FullManifestTest, ValuesAreThoseWritten) {
  const Result<TrainingJob> job = decode_training_job(read_fixture("full.yaml"));
  ASSERT_TRUE(job.has_value()) << job.error().message;
  const TrainingJobSpec& spec = job->spec;
  EXPECT_EQ(job->metadata.labels.at("team"), "language");
  EXPECT_EQ(spec.active_deadline, std::chrono::seconds(86400));
  ASSERT_TRUE(spec.engine->start_from);
  EXPECT_EQ(spec.engine->start_from->checkpoint, "first/g1-step-0000000500");
  EXPECT_EQ(spec.engine->start_from->what, StartWhat::kWeights);
  EXPECT_EQ(horizon_of(*spec.engine), 4000);
  EXPECT_EQ(spec.pod_template->containers[0].env[0].value, "/cache");
  EXPECT_EQ(spec.pod_template->containers[0].command, std::vector<std::string>{"trainyard-worker"});
  EXPECT_EQ(spec.engine->model.layers, 6);
  EXPECT_EQ(spec.engine->model.ffn, 1024);
  EXPECT_EQ(spec.engine->optimizer.learning_rate, 6.0e-4);
  EXPECT_EQ(spec.engine->precision.compute, NumberFormat::kBF16);
  EXPECT_EQ(spec.failure_policy.rules[1].on_pod_conditions[0].type, "DisruptionTarget");
  EXPECT_EQ(budget_of(spec.failure_policy, FailureClass::kPreemption).max_restarts, 50);
  EXPECT_EQ(budget_of(spec.failure_policy, FailureClass::kHang),
            default_budget(FailureClass::kHang));
  EXPECT_EQ(job->status.restarts.classes[0].recent.size(), 2U);
  EXPECT_EQ(job->status.progress->loss, 2.31);
  EXPECT_EQ(job->status.attempts[0].signal, 9);
}

/// A manifest with nothing but what is required decodes to the structs' own initialisers.
TEST(DefaultsTest, AreTheInitialisers) {
  const Result<TrainingJob> job = decode_training_job(
      "apiVersion: trainyard.dev/v1alpha1\nkind: TrainingJob\nmetadata: {name: job}\nspec:\n"
      "  engine:\n    model: {preset: gpt2-124m}\n    data: {tokens: [a]}\n"
      "    batch: {globalSequences: 8}\n    steps: 100\n");
  ASSERT_TRUE(job.has_value()) << job.error().message;
  TrainingJob expected;
  expected.metadata.name = "job";
  EngineSpec& engine = expected.spec.engine.emplace();
  engine.model = {.preset = "gpt2-124m",
                  .layers = 12,
                  .hidden = 768,
                  .heads = 12,
                  .kv_heads = 12,
                  .ffn = 3072,
                  .vocab = 50257,
                  .max_positions = 1024};
  engine.data.tokens = {"a"};
  engine.data.sequence_length = 1024;
  engine.batch.global_sequences = 8;
  engine.steps = 100;
  EXPECT_EQ(*job, expected);
}

TEST(DefaultsTest, ZeroStageIsThatOfTheMode) {
  const auto stage_of = [](const std::string& parallelism) {
    const Result<EngineSpec> engine = decode_engine(
        R"({"model": {"preset": "gpt2-3m"}, "data": {"tokens": ["a"]}, "steps": 1,
            "batch": {"globalSequences": 1}, "parallelism": )" +
        parallelism + "}");
    EXPECT_TRUE(engine.has_value()) << engine.error().message;
    return engine ? engine->parallelism.zero_stage : -1;
  };
  EXPECT_EQ(stage_of("{}"), 1);
  EXPECT_EQ(stage_of(R"({"mode": "Distributed"})"), 1);
  EXPECT_EQ(stage_of(R"({"mode": "DataParallel"})"), 0);
  EXPECT_EQ(stage_of(R"({"zeroStage": 0})"), 0) << "as objects stored before it was 1 say";
  EXPECT_EQ(stage_of(R"({"zeroStage": 3, "shard": 2})"), 3);
}

TEST(DefaultsTest, ObeyTheirOwnBounds) {
  FaultList faults("defaults");
  BoundsChecker bounds(faults, "");
  TrainingJob job;
  job.metadata.name = "job";
  EngineSpec& engine = job.spec.engine.emplace();
  engine.data.tokens = {"a"};
  engine.batch.global_sequences = 1;
  engine.steps = 1;
  job.spec.elastic_policy.emplace();
  for (const EnumName<FailureClass>& entry : EnumTable<FailureClass>::kNames) {
    job.spec.failure_policy.budgets.push_back(default_budget(entry.value));
  }
  visit_fields(bounds, job);
  EXPECT_EQ(error_of(faults.take()).message, "");
}

TEST(PresetTest, AllAreValidAndMayBeOverridden) {
  for (const Preset& preset : presets()) {
    const std::string text = "{\"model\": {\"preset\": \"" + std::string(preset.name) +
                             "\", \"dropout\": 0.25, \"vocab\": 300}, \"data\": {\"tokens\": "
                             "[\"a\"]}, \"batch\": {\"globalSequences\": 1}, \"steps\": 1}";
    const Result<EngineSpec> engine = decode_engine(text);
    ASSERT_TRUE(engine.has_value()) << engine.error().message;
    EXPECT_EQ(engine->model.layers, preset.layers);
    EXPECT_EQ(engine->model.dropout, 0.25);
    EXPECT_EQ(engine->model.vocab, 300);
    EXPECT_EQ(engine->data.sequence_length, preset.max_positions);
  }
}

}  // namespace
}  // namespace trainyard::api

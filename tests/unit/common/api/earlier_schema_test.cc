// The files of a pod may be read by the engine of an earlier image, which refuses names and values
// that it does not know. A manifest without the fields that came later must therefore lead to files
// without them.
//
// tests/fixtures/formats has the definition and the full manifest of commit 02eeba82:
//   git show 02eeba82:manifests/crd.yaml > crd-02eeba82.yaml
//   git show 02eeba82:tests/unit/common/api/fixtures/full.yaml > full-02eeba82.yaml
#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/api/decode.h"
#include "common/api/encode.h"
#include "common/text/document.h"
#include "tests/support/paths.h"

namespace trainyard::api {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using text::Kind;
using text::Node;

std::string kept_file(const std::string& name) {
  std::ifstream file(testing_support::source_path("tests/fixtures/formats/" + name));
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

/// The earlier schema of a member of spec.
const Node& earlier_schema(const std::string& member) {
  static const text::Document definition = text::parse_yaml(kept_file("crd-02eeba82.yaml"));
  const Node& version = definition.root.find("spec")->find("versions")->items.at(0);
  const Node& spec =
      *version.find("schema")->find("openAPIV3Schema")->find("properties")->find("spec");
  return *spec.find("properties")->find(member);
}

bool has_type(const Node& schema, Kind kind) {
  const bool is_integer = kind == Kind::kInteger;
  if (schema.find("x-kubernetes-int-or-string") != nullptr)
    return is_integer || kind == Kind::kString;
  const std::string& type = schema.find("type")->string;
  switch (kind) {
    case Kind::kMapping:
      return type == "object";
    case Kind::kSequence:
      return type == "array";
    case Kind::kString:
      return type == "string";
    case Kind::kBool:
      return type == "boolean";
    default:
      return type == "number" || (type == "integer" && is_integer);
  }
}

bool is_in_bounds(const Node& schema, double value) {
  const Node* least = schema.find("minimum");
  const Node* most = schema.find("maximum");
  const bool above = schema.find("exclusiveMinimum") != nullptr;
  const bool below = schema.find("exclusiveMaximum") != nullptr;
  return (least == nullptr || (above ? value > least->number : value >= least->number)) &&
         (most == nullptr || (below ? value < most->number : value <= most->number));
}

bool is_named(const Node& schema, const std::string& value) {
  const Node* names = schema.find("enum");
  return names == nullptr || std::any_of(names->items.begin(), names->items.end(),
                                         [&](const Node& name) { return name.string == value; });
}

/// What the schema refuses: the fields, each with its value.
void collect_refused(const Node& schema, const Node& value, const std::string& path,
                     std::vector<std::string>& refused) {
  const bool is_number = value.kind == Kind::kInteger || value.kind == Kind::kNumber;
  if (!has_type(schema, value.kind) || !is_named(schema, value.string) ||
      (is_number && !is_in_bounds(schema, value.number))) {
    refused.push_back(path + ": " + text::describe(value));
  }
  for (const Node& item : value.items)
    collect_refused(*schema.find("items"), item, path, refused);
  for (const text::Member& member : value.members) {
    const std::string inner = text::join_path(path, member.key);
    const Node* known = schema.find("properties")->find(member.key);
    if (known != nullptr) {
      collect_refused(*known, member.value, inner, refused);
    } else {
      refused.push_back(inner + ": " + text::describe(member.value));
    }
  }
}

/// What the earlier engine refuses in the files of a job's pods.
std::vector<std::string> refused_in_files(const EngineSpec& engine,
                                          const CheckpointPolicy& policy) {
  std::vector<std::string> refused;
  const auto collect = [&](const std::string& member, const std::string& json) {
    const text::Document file = text::parse_json(json);
    EXPECT_TRUE(file.complete && file.problems.empty()) << json;
    collect_refused(earlier_schema(member), file.root, member, refused);
  };
  collect("engine", encode_engine(engine));
  collect("checkpointPolicy", encode_checkpoint_policy(policy));
  return refused;
}

TEST(EarlierSchemaTest, KnowsWhatIsWrittenForAManifestOfItsTime) {
  const auto job = decode_training_job(kept_file("full-02eeba82.yaml"));
  ASSERT_TRUE(job) << job.error().message;
  EXPECT_THAT(refused_in_files(*job->spec.engine, job->spec.checkpoint_policy), IsEmpty());
}

TEST(EarlierSchemaTest, KnowsWhatIsWrittenForAManifestThatNamesLittle) {
  const auto job = decode_training_job(R"(engine:
  model: {layers: 1, hidden: 8, heads: 2, maxPositions: 16}
  data: {tokens: [a.tokens]}
  batch: {globalSequences: 4}
  steps: 10
)");
  ASSERT_TRUE(job) << job.error().message;
  EXPECT_THAT(refused_in_files(*job->spec.engine, job->spec.checkpoint_policy), IsEmpty());
}

TEST(EarlierSchemaTest, DoesNotKnowLaterFieldsAndValues) {
  EngineSpec engine;
  engine.model = {.family = ModelFamily::kLlama, .kv_heads = 1};
  engine.data.tokens = {"a.tokens"};
  engine.batch.global_sequences = 1;
  engine.steps = -1;
  engine.numerics.key_block = 64;
  engine.numerics.tensor_chunks = 0;
  engine.device = DeviceKind::kCpu;
  CheckpointPolicy policy;
  policy.memory_replicas = 1;
  EXPECT_THAT(refused_in_files(engine, policy),
              ElementsAre("engine.model.family: \"Llama\"", "engine.steps: -1",
                          "engine.numerics.keyBlock: 64", "engine.numerics.tensorChunks: 0",
                          "engine.device: \"Cpu\"", "checkpointPolicy.memoryReplicas: 1"));
}

}  // namespace
}  // namespace trainyard::api

#include "common/api/crd.h"

#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/api/decode.h"
#include "common/api/field_kinds.h"
#include "common/text/document.h"
#include "tests/support/paths.h"
#include "tests/unit/common/api/field_walker.h"

namespace trainyard::api {
namespace {

using testing::Contains;
using testing::Not;
using text::Kind;
using text::Node;

std::string file_text(const std::string& path) {
  std::ifstream file(testing_support::source_path(path));
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

/// The manifest in the repository, parsed; the tests below judge it and not the generator.
const Node& manifest() {
  static const text::Document document = text::parse_yaml(file_text("manifests/crd.yaml"));
  return document.root;
}

const Node& version() { return manifest().find("spec")->find("versions")->items.at(0); }
const Node& schema() { return *version().find("schema")->find("openAPIV3Schema"); }

/// Calls `each(path, schema)` for every property below a schema, list items without an index. What
/// is below the pod template belongs to Kubernetes.
template <class Each>
void for_each_property(const Node& schema, const std::string& path, Each& each) {
  if (path == "spec.template") return;
  if (const Node* items = schema.find("items")) for_each_property(*items, path, each);
  const Node* properties = schema.find("properties");
  if (properties == nullptr) return;
  for (const text::Member& property : properties->members) {
    const std::string inner = text::join_path(path, property.key);
    each(inner, property.value);
    for_each_property(property.value, inner, each);
  }
}

std::string type_of(const Node& schema) {
  if (schema.find("x-kubernetes-int-or-string") != nullptr) return "integer or text";
  const Node* type = schema.find("type");
  std::string name = type == nullptr ? "" : type->string;
  if (const Node* items = schema.find("items")) name += " of " + type_of(*items);
  return name;
}

/// The type of the schema that a member of type M asks for.
template <class M>
std::string type_wanted(const Field& field) {
  if constexpr (IsOptional<M>::value) {
    return type_wanted<typename M::value_type>(field);
  } else if constexpr (std::same_as<M, bool>) {
    return "boolean";
  } else if constexpr (std::same_as<M, int64_t> || std::same_as<M, std::chrono::seconds>) {
    return field.zero_word.empty() ? "integer" : "integer or text";
  } else if constexpr (std::same_as<M, double>) {
    if (field.notation == Notation::kDecimalText) return "string";
    return field.zero_word.empty() ? "number" : "integer or text";
  } else if constexpr (std::is_enum_v<M> || std::same_as<M, std::string> || std::same_as<M, Time> ||
                       std::same_as<M, std::chrono::milliseconds> || IsOpenWord<M>::value) {
    return "string";
  } else if constexpr (std::same_as<M, std::array<double, 2>>) {
    return "array of number";
  } else if constexpr (IsVector<M>::value) {
    return "array of " + type_wanted<typename M::value_type>(field);
  } else {
    return "object";
  }
}

TEST(CrdManifestTest, IsStrictYaml) {
  const text::Document document = text::parse_yaml(file_text("manifests/crd.yaml"));
  EXPECT_TRUE(document.complete);
  EXPECT_TRUE(document.problems.empty());
}

TEST(CrdManifestTest, IsWhatTheTablesMake) {
  EXPECT_EQ(file_text("manifests/crd.yaml"), crd_manifest())
      << "run: trainyard reference crd > manifests/crd.yaml";
}

TEST(CrdManifestTest, StaysBelowTheSizeThatClientSideApplyCanKeep) {
  // kubectl apply keeps the manifest in an annotation, and all annotations share 256 KiB.
  EXPECT_LT(file_text("manifests/crd.yaml").size(), 256U << 10);
  EXPECT_GT(file_text("manifests/crd.yaml").size(), 16U << 10);
}

TEST(CrdSchemaTest, HasEveryFieldOfTheStructsAndNoOther) {
  std::map<std::string, std::string> in_schema;
  auto note = [&](const std::string& path, const Node& property) {
    in_schema[path] = type_of(property);
  };
  for_each_property(schema(), "", note);
  std::map<std::string, std::string> in_structs;
  for_each_field([&]<class M>(const std::string& path, const Field& field, std::type_identity<M>) {
    if (!path.starts_with("metadata.")) in_structs[path] = type_wanted<M>(field);
  });
  EXPECT_EQ(in_schema, in_structs);
  EXPECT_GT(in_schema.size(), 200U);
}

TEST(CrdSchemaTest, TypesWhatRulesLookAtInThePodTemplate) {
  const Node& pod =
      *schema().find("properties")->find("spec")->find("properties")->find("template");
  std::set<std::string> found;
  auto note = [&](const std::string& path, const Node&) { found.insert(path); };
  for_each_property(pod, "", note);
  EXPECT_EQ(found, (std::set<std::string>{
                       "metadata", "metadata.labels", "metadata.annotations", "metadata.finalizers",
                       "metadata.ownerReferences", "spec", "spec.restartPolicy", "spec.nodeName",
                       "spec.hostNetwork", "spec.hostPID", "spec.hostIPC", "spec.containers",
                       "spec.containers.name", "spec.containers.image", "spec.containers.command",
                       "spec.containers.args", "spec.containers.env", "spec.containers.env.name",
                       "spec.containers.env.value"}));
}

TEST(CrdSchemaTest, EveryFieldIsDescribedAndBounded) {
  auto judge = [](const std::string& path, const Node& property) {
    if (path == "metadata") return;
    const Node* description = property.find("description");
    ASSERT_NE(description, nullptr) << path;
    EXPECT_TRUE(description->string.ends_with('.')) << path << ": " << description->string;
    const std::string type = type_of(property);
    if (type.starts_with("array")) {
      EXPECT_NE(property.find("maxItems"), nullptr) << path;
    }
    // The API server bounds these by the versions that it serves.
    if (type == "string" && path != "apiVersion" && path != "kind") {
      EXPECT_TRUE(property.find("maxLength") || property.find("enum") || property.find("format"))
          << path;
    }
    if ((type == "integer" || type == "number") && path.starts_with("spec.")) {
      EXPECT_NE(property.find("minimum"), nullptr) << path;
    }
  };
  for_each_property(schema(), "", judge);
}

/// What the API server does to an object: members that are missing get the schema's defaults.
void fill_in_defaults(const Node& schema, Node& value) {
  if (const Node* items = schema.find("items")) {
    for (Node& item : value.items)
      fill_in_defaults(*items, item);
  }
  const Node* properties = schema.find("properties");
  if (properties == nullptr || value.kind != Kind::kMapping) return;
  for (const text::Member& property : properties->members) {
    const Node* default_value = property.value.find("default");
    if (value.find(property.key) == nullptr && default_value != nullptr) {
      value.members.push_back({.key = property.key, .value = *default_value});
    }
    for (text::Member& member : value.members) {
      if (member.key == property.key) fill_in_defaults(property.value, member.value);
    }
  }
}

constexpr char kSparse[] = R"(
apiVersion: trainyard.dev/v1alpha1
kind: TrainingJob
metadata: {name: job}
spec:
  elasticPolicy: {}
  failurePolicy:
    budgets: [{class: Hang}]
    rules:
    - {name: a, action: FailJob, onExitCodes: {values: [3]}}
    - {name: b, action: Ignore, onPodConditions: [{type: DisruptionTarget}]}
  engine:
    model: {preset: gpt2-124m}
    data: {tokens: [a]}
    batch: {globalSequences: 8}
    steps: 100
)";

TEST(CrdSchemaTest, DefaultsAreTheInitialisersOfTheStructs) {
  Node tree = text::parse_yaml(kSparse).root;
  fill_in_defaults(schema(), tree);
  const Node& spec = *tree.find("spec");
  ASSERT_NE(spec.find("numNodes"), nullptr);
  EXPECT_EQ(spec.find("failurePolicy")->find("backoff")->find("maxSeconds")->integer, 300);
  EXPECT_EQ(spec.find("managedBy"), nullptr);
  const Result<TrainingJob> filled = decode_training_job(text::to_json(tree));
  const Result<TrainingJob> sparse = decode_training_job(kSparse);
  ASSERT_TRUE(filled.has_value()) << filled.error().message;
  ASSERT_TRUE(sparse.has_value()) << sparse.error().message;
  EXPECT_EQ(*filled, *sparse);
}

TEST(CrdVersionTest, HasTheColumnsAndSubresourcesThatPeopleUse) {
  std::map<std::string, std::string> columns;
  for (const Node& column : version().find("additionalPrinterColumns")->items) {
    const bool wide = column.find("priority") != nullptr;
    columns[column.find("name")->string + (wide ? " (wide)" : "")] =
        column.find("jsonPath")->string;
  }
  EXPECT_EQ(columns, (std::map<std::string, std::string>{
                         {"Phase", ".status.phase"},
                         {"Reason", ".status.reason"},
                         {"Ready", ".status.nodes.ready"},
                         {"Nodes", ".spec.numNodes"},
                         {"Step", ".status.progress.step"},
                         {"Restarts", ".status.restarts.total"},
                         {"Age", ".metadata.creationTimestamp"},
                         {"Loss (wide)", ".status.progress.loss"},
                         {"Tokens/s (wide)", ".status.progress.tokensPerSecond"},
                         {"Goodput (wide)", ".status.goodput.ratio"},
                         {"Generation (wide)", ".status.membership.generation"},
                         {"Suspended (wide)", ".spec.suspend"},
                         {"Message (wide)", ".status.message"},
                     }));
  const Node& scale = *version().find("subresources")->find("scale");
  EXPECT_EQ(scale.find("specReplicasPath")->string, ".spec.numNodes");
  EXPECT_EQ(scale.find("statusReplicasPath")->string, ".status.nodes.active");
  EXPECT_EQ(scale.find("labelSelectorPath")->string, ".status.selector");
  // A column whose path leads nowhere would be empty for ever.
  std::set<std::string> paths = {".metadata.creationTimestamp"};
  auto note = [&](const std::string& path, const Node&) { paths.insert("." + path); };
  for_each_property(schema(), "", note);
  for (const auto& [name, path] : columns)
    EXPECT_THAT(paths, Contains(path)) << name;
}

/// Every rule and the text of its message; a message that names nobody helps nobody.
TEST(CrdRulesTest, MessagesSayWhatIsWanted) {
  int rules = 0;
  auto judge = [&](const std::string& path, const Node& property) {
    const Node* validations = property.find("x-kubernetes-validations");
    if (validations == nullptr) return;
    for (const Node& rule : validations->items) {
      ++rules;
      ASSERT_NE(rule.find("message"), nullptr) << path;
      EXPECT_THAT(rule.find("message")->string, Not(testing::IsEmpty())) << path;
    }
  };
  judge("", schema());
  for_each_property(schema(), "", judge);
  EXPECT_GT(rules, 50);
}

/// The API server judges a default by the rules before it fills in what is below: a rule that reads
/// a field of an object with a default must also hold where some field is missing.
TEST(CrdTest, RulesOfObjectsWithADefaultHoldForTheDefault) {
  int judged = 0;
  auto judge = [&](const std::string& path, const Node& property) {
    const Node* rules = property.find("x-kubernetes-validations");
    if (rules == nullptr || property.find("default") == nullptr) return;
    for (const Node& item : rules->items) {
      const std::string& rule = item.find("rule")->string;
      if (rule.find("self.") == std::string::npos) continue;
      ++judged;
      EXPECT_NE(rule.find("!has(self."), std::string::npos) << path << ": " << rule;
    }
  };
  for_each_property(schema(), "", judge);
  EXPECT_GT(judged, 0);
}

}  // namespace
}  // namespace trainyard::api

#include "common/api/crd.h"

#include "common/api/crd_rules.h"
#include "common/api/schema.h"
#include "common/api/schema_node.h"
#include "common/text/yaml_writer.h"

namespace trainyard::api {
namespace {

using schema::boolean_node;
using schema::integer_node;
using schema::list_node;
using schema::mapping_node;
using schema::put;
using schema::string_node;
using text::Node;

constexpr char kHead[] =
    R"(# The custom resource TrainingJob. Made by `trainyard reference crd` from the field tables in common/api; do not edit.
)";

/// Who sees a column of `kubectl get`.
enum class Width { kAlways, kWide };

struct Column {
  std::string_view name;
  std::string_view type;
  std::string_view path;
  Width width = Width::kAlways;
};

constexpr Column kColumns[] = {
    {"Phase", "string", ".status.phase"},
    {"Ready", "integer", ".status.nodes.ready"},
    {"Nodes", "integer", ".spec.numNodes"},
    {"Step", "integer", ".status.progress.step"},
    {"Restarts", "integer", ".status.restarts.total"},
    {"Age", "date", ".metadata.creationTimestamp"},
    {"Loss", "string", ".status.progress.loss", Width::kWide},
    {"Tokens/s", "string", ".status.progress.tokensPerSecond", Width::kWide},
    {"Goodput", "string", ".status.goodput.ratio", Width::kWide},
    {"Generation", "integer", ".status.membership.generation", Width::kWide},
    {"Suspended", "boolean", ".spec.suspend", Width::kWide},
};

Node columns() {
  Node list = list_node({});
  for (const Column& column : kColumns) {
    Node node = mapping_node({{"name", string_node(column.name)},
                              {"type", string_node(column.type)},
                              {"jsonPath", string_node(column.path)}});
    if (column.width == Width::kWide) put(node, "priority", integer_node(1));
    list.items.push_back(std::move(node));
  }
  return list;
}

/// What `kubectl explain trainingjob` begins with.
constexpr char kDescription[] =
    "A distributed training job: a gang of pods that start together, restart together when one "
    "fails, and go on from their newest checkpoint.";

Node version() {
  Node root = schema::training_job();
  root.members.insert(root.members.begin(), {"description", 0, 0, string_node(kDescription)});
  schema::apply_rules(root);
  Node scale = mapping_node({{"specReplicasPath", string_node(".spec.numNodes")},
                             {"statusReplicasPath", string_node(".status.nodes.active")},
                             {"labelSelectorPath", string_node(".status.selector")}});
  return mapping_node(
      {{"name", string_node("v1alpha1")},
       {"served", boolean_node(true)},
       {"storage", boolean_node(true)},
       {"subresources", mapping_node({{"status", mapping_node({})}, {"scale", std::move(scale)}})},
       {"additionalPrinterColumns", columns()},
       {"schema", mapping_node({{"openAPIV3Schema", std::move(root)}})}});
}

}  // namespace

std::string crd_manifest() {
  const Node names = mapping_node({{"kind", string_node("TrainingJob")},
                                   {"listKind", string_node("TrainingJobList")},
                                   {"plural", string_node("trainingjobs")},
                                   {"singular", string_node("trainingjob")},
                                   {"shortNames", list_node({string_node("tj")})},
                                   {"categories", list_node({string_node("trainyard")})}});
  const Node crd = mapping_node(
      {{"apiVersion", string_node("apiextensions.k8s.io/v1")},
       {"kind", string_node("CustomResourceDefinition")},
       {"metadata", mapping_node({{"name", string_node("trainingjobs.trainyard.dev")}})},
       {"spec", mapping_node({{"group", string_node("trainyard.dev")},
                              {"names", names},
                              {"scope", string_node("Namespaced")},
                              {"versions", list_node({version()})}})}});
  return kHead + text::to_yaml(crd);
}

}  // namespace trainyard::api

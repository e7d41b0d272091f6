#include "common/api/pod_template_schema.h"

#include <string>

#include "common/api/schema_node.h"
#include "common/api/validate.h"

namespace trainyard::api::schema {
namespace {

using text::Node;

// Kubernetes' own limits: labels 63, annotations 256 KiB in all, names of variables and images are
// not bounded there, so generously here.
constexpr int64_t kMaxLabels = 128;
constexpr int64_t kMaxText = 32768;

Node string_schema(std::string_view description, int64_t max_length) {
  return mapping_node({{"description", string_node(description)},
                       {"type", string_node("string")},
                       {"maxLength", integer_node(max_length)}});
}

Node boolean_schema(std::string_view description) {
  return mapping_node(
      {{"description", string_node(description)}, {"type", string_node("boolean")}});
}

/// A mapping that keeps what it does not name.
Node open_object(std::string_view description) {
  return mapping_node({{"description", string_node(description)},
                       {"type", string_node("object")},
                       {"x-kubernetes-preserve-unknown-fields", boolean_node(true)}});
}

Node list_schema(std::string_view description, int64_t max_items, Node items) {
  return mapping_node({{"description", string_node(description)},
                       {"type", string_node("array")},
                       {"maxItems", integer_node(max_items)},
                       {"items", std::move(items)}});
}

Node map_schema(std::string_view description, int64_t max_length) {
  return mapping_node(
      {{"description", string_node(description)},
       {"type", string_node("object")},
       {"maxProperties", integer_node(kMaxLabels)},
       {"additionalProperties",
        mapping_node({{"type", string_node("string")}, {"maxLength", integer_node(max_length)}})}});
}

void put_rule(Node& schema, std::string_view rule, std::string_view message) {
  put(schema, "x-kubernetes-validations",
      list_node({mapping_node({{"rule", string_node(rule)}, {"message", string_node(message)}})}));
}

Node metadata() {
  Node labels = map_schema("Labels of the pods, in addition to the operator's.", 63);
  put_rule(labels, "self.all(label, !label.startsWith('trainyard.dev/'))",
           "must not hold a label with the prefix trainyard.dev/, which is reserved");
  const Node word =
      mapping_node({{"type", string_node("string")}, {"maxLength", integer_node(253)}});
  Node owner = open_object("Owner.");
  Node schema = open_object("Metadata of the pods.");
  put(schema, "properties",
      mapping_node({{"labels", std::move(labels)},
                    {"annotations", map_schema("Annotations of the pods.", 262144)},
                    {"finalizers",
                     list_schema("Must be empty: finalizers block deletion of pods.", 0, word)},
                    {"ownerReferences",
                     list_schema("Must be empty: the job owns its pods.", 0, std::move(owner))}}));
  return schema;
}

Node variable() {
  Node name = string_schema("Name of the variable.", 1024);
  put(name, "minLength", integer_node(1));
  std::string reserved;
  for (const std::string_view variable : reserved_env())
    reserved += (reserved.empty() ? "'" : ", '") + std::string(variable) + "'";
  put_rule(name, "!self.startsWith('TRAINYARD_') && !(self in [" + reserved + "])",
           "must be another name: Trainyard sets this one for every process");
  Node schema = open_object("Variable.");
  put(schema, "required", list_node({string_node("name")}));
  put(schema, "properties",
      mapping_node({{"name", std::move(name)},
                    {"value", string_schema("Value of the variable.", kMaxText)}}));
  return schema;
}

Node container() {
  const Node word =
      mapping_node({{"type", string_node("string")}, {"maxLength", integer_node(kMaxText)}});
  Node name = string_schema("Name of the container; the exit of `trainer` ends the pod.", 63);
  put(name, "pattern", string_node("^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"));
  Node schema = open_object("Container.");
  put(schema, "required", list_node({string_node("name")}));
  put(schema, "properties",
      mapping_node(
          {{"name", std::move(name)},
           {"image", string_schema("Image; with engine, `trainer` may leave it out.", 4096)},
           {"command", list_schema("Program and its first arguments.", 1024, word)},
           {"args", list_schema("Arguments.", 1024, word)},
           {"env", list_schema("Variables of its processes.", 256, variable())}}));
  return schema;
}

Node pod_spec() {
  Node restart_policy = string_schema("Must be empty or Never.", 16);
  put_rule(restart_policy, "self == '' || self == 'Never'",
           "must be Never: failurePolicy controls restarts");
  Node node_name = string_schema("Must be empty.", 253);
  put_rule(node_name, "self == ''", "must be empty: use nodeSelector or affinity");
  Node containers =
      list_schema("Containers; if there are several, one is named trainer.", 16, container());
  put(containers, "minItems", integer_node(1));
  put(containers, "x-kubernetes-list-type", string_node("map"));
  put(containers, "x-kubernetes-list-map-keys", list_node({string_node("name")}));
  put_rule(containers, "size(self) <= 1 || self.exists(container, container.name == 'trainer')",
           "must hold a container named trainer, whose exit ends the pod");
  Node schema = open_object("Specification of the pods, a PodSpec.");
  put(schema, "required", list_node({string_node("containers")}));
  put(schema, "properties",
      mapping_node({{"restartPolicy", std::move(restart_policy)},
                    {"nodeName", std::move(node_name)},
                    {"hostNetwork", boolean_schema("Use the node's network.")},
                    {"hostPID", boolean_schema("Use the node's process ids.")},
                    {"hostIPC", boolean_schema("Use the node's shared memory.")},
                    {"containers", std::move(containers)}}));
  return schema;
}

}  // namespace

Node pod_template() {
  Node schema = mapping_node({{"type", string_node("object")}});
  put(schema, "required", list_node({string_node("spec")}));
  put(schema, "properties", mapping_node({{"metadata", metadata()}, {"spec", pod_spec()}}));
  return schema;
}

}  // namespace trainyard::api::schema

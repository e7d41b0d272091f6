#include "common/api/schema_node.h"

#include <algorithm>
#include <cmath>

#include "common/base/check.h"

namespace trainyard::api::schema {

using text::Kind;
using text::Node;

namespace {

Node node_of(Kind kind) {
  Node node;
  node.kind = kind;
  return node;
}

Node* find(Node& mapping, std::string_view key) {
  for (text::Member& member : mapping.members) {
    if (member.key == key) return &member.value;
  }
  return nullptr;
}

}  // namespace

Node string_node(std::string_view value) {
  Node node = node_of(Kind::kString);
  node.string = std::string(value);
  return node;
}

Node integer_node(int64_t value) {
  Node node = node_of(Kind::kInteger);
  node.integer = value;
  node.number = static_cast<double>(value);
  return node;
}

Node boolean_node(bool value) {
  Node node = node_of(Kind::kBool);
  node.boolean = value;
  return node;
}

Node number_node(double value) {
  constexpr double kExact = 1LL << 53;
  if (value == std::floor(value) && std::abs(value) < kExact) {
    return integer_node(static_cast<int64_t>(value));
  }
  Node node = node_of(Kind::kNumber);
  node.number = value;
  return node;
}

Node mapping_node(std::initializer_list<std::pair<std::string_view, Node>> members) {
  Node node = node_of(Kind::kMapping);
  for (const auto& [key, value] : members)
    put(node, key, value);
  return node;
}

Node list_node(std::initializer_list<Node> items) {
  Node node = node_of(Kind::kSequence);
  node.items = items;
  return node;
}

void put(Node& mapping, std::string_view key, Node value) {
  if (Node* there = find(mapping, key)) {
    *there = std::move(value);
  } else {
    mapping.members.push_back({.key = std::string(key), .value = std::move(value)});
  }
}

Node& member(Node& mapping, std::string_view key, Kind kind) {
  if (find(mapping, key) == nullptr) put(mapping, key, node_of(kind));
  return *find(mapping, key);
}

Node& at(Node& root, std::string_view path) {
  Node* schema = &root;
  while (!path.empty()) {
    const size_t dot = std::min(path.find('.'), path.size());
    const std::string_view name = path.substr(0, dot);
    path.remove_prefix(std::min(dot + 1, path.size()));
    Node* const inner = name == "*" ? schema : find(*schema, "properties");
    schema = inner == nullptr ? nullptr : find(*inner, name == "*" ? "items" : name);
    TRAINYARD_CHECK(schema != nullptr);
  }
  return *schema;
}

}  // namespace trainyard::api::schema

#include "common/text/document.h"

#include <algorithm>

#include "common/text/json_writer.h"

namespace trainyard::text {
namespace {

constexpr size_t kDescribedBytes = 60;

void write_node(const Node& node, JsonWriter& writer) {
  switch (node.kind) {
    case Kind::kNull:
    case Kind::kRefused:
      writer.null();
      return;
    case Kind::kBool:
      writer.boolean(node.boolean);
      return;
    case Kind::kInteger:
      writer.integer(node.integer);
      return;
    case Kind::kNumber:
      writer.number(node.number);
      return;
    case Kind::kString:
      writer.string(node.string);
      return;
    case Kind::kSequence:
      writer.begin_array();
      for (const Node& item : node.items)
        write_node(item, writer);
      writer.end_array();
      return;
    case Kind::kMapping:
      writer.begin_object();
      for (const Member& member : node.members) {
        writer.key(member.key);
        write_node(member.value, writer);
      }
      writer.end_object();
      return;
  }
}

}  // namespace

const Member* Node::find_member(std::string_view key) const {
  for (const Member& member : members) {
    if (member.key == key) return &member;
  }
  return nullptr;
}

const Node* Node::find(std::string_view key) const {
  const Member* member = find_member(key);
  return member == nullptr ? nullptr : &member->value;
}

Document parse(std::string_view text, const Limits& limits) {
  std::string_view rest = text;
  if (rest.starts_with("\xEF\xBB\xBF")) rest.remove_prefix(3);
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t brace = rest.find_first_not_of(kSpace);
  if (brace == std::string_view::npos || rest[brace] != '{') return parse_yaml(text, limits);
  const size_t next = rest.find_first_not_of(kSpace, brace + 1);
  const bool json = next != std::string_view::npos && (rest[next] == '"' || rest[next] == '}');
  return json ? parse_json(text, limits) : parse_yaml(text, limits);
}

std::string to_json(const Node& node) {
  JsonWriter writer;
  write_node(node, writer);
  return writer.take();
}

std::string join_path(std::string_view path, std::string_view key) {
  const auto is_plain = [](char c) { return c > ' ' && c < 0x7F && c != '"' && c != '\\'; };
  const bool plain = !key.empty() && key.size() <= kDescribedBytes &&
                     std::all_of(key.begin(), key.end(), is_plain);
  std::string joined(path);
  if (!joined.empty()) joined += '.';
  return plain ? joined.append(key) : joined + describe(key);
}

std::string join_path(std::string_view path, size_t index) {
  return std::string(path) + "[" + std::to_string(index) + "]";
}

std::string describe(std::string_view string) {
  if (string.size() <= kDescribedBytes) return quote_json(string);
  size_t cut = kDescribedBytes;
  while (cut > 0 && (static_cast<unsigned char>(string[cut]) & 0xC0U) == 0x80U)
    --cut;
  return quote_json(string.substr(0, cut)) + "...";
}

std::string describe(const Node& node) {
  switch (node.kind) {
    case Kind::kNull:
      return "nothing";
    case Kind::kSequence:
      return "a list";
    case Kind::kMapping:
      return "a mapping";
    case Kind::kString:
      return describe(node.string);
    default:
      break;
  }
  return node.string.size() <= kDescribedBytes ? node.string
                                               : node.string.substr(0, kDescribedBytes) + "...";
}

}  // namespace trainyard::text

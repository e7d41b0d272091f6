#include "common/text/yaml_writer.h"

#include <algorithm>
#include <array>

#include "common/text/json_writer.h"

namespace trainyard::text {
namespace {

/// What some reader or other takes for a boolean or for null (YAML 1.1, types bool and null).
constexpr std::array<std::string_view, 26> kWords = {
    "y",   "Y",     "yes",   "Yes",   "YES",  "n",    "N",    "no",  "No",
    "NO",  "true",  "True",  "TRUE",  "on",   "On",   "ON",   "off", "Off",
    "OFF", "false", "False", "FALSE", "null", "Null", "NULL", "~"};

/// True for a word that is text to every reader: it starts with a letter and has no sign of YAML.
bool is_plain(std::string_view text) {
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  const auto inner = [&](char c) {
    return letter(c) || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.' || c == '/';
  };
  return !text.empty() && letter(text[0]) && std::all_of(text.begin(), text.end(), inner) &&
         std::find(kWords.begin(), kWords.end(), text) == kWords.end();
}

std::string scalar(std::string_view text) {
  return is_plain(text) ? std::string(text) : quote_json(text);
}

/// Some readers take 6e-04 for text, none 6.0e-04.
std::string number(std::string text) {
  const size_t exponent = text.find('e');
  if (exponent != std::string::npos && text.find('.') == std::string::npos)
    text.insert(exponent, ".0");
  return text;
}

class Writer {
 public:
  void write(const Node& node, int depth) {
    if (node.kind == Kind::kMapping && !node.members.empty()) return write_mapping(node, depth);
    if (node.kind == Kind::kSequence && !node.items.empty()) return write_sequence(node, depth);
    text_ += scalar_of(node) + "\n";
  }
  std::string take() { return std::move(text_); }

 private:
  static std::string scalar_of(const Node& node) {
    switch (node.kind) {
      case Kind::kString:
        return scalar(node.string);
      case Kind::kMapping:
        return "{}";
      case Kind::kSequence:
        return "[]";
      case Kind::kNumber:
        return number(to_json(node));
      default:
        return to_json(node);
    }
  }

  /// The first line of what is written goes on in the line that has been begun.
  void write_mapping(const Node& node, int depth) {
    bool first = true;
    for (const Member& member : node.members) {
      if (!first) indent(depth);
      first = false;
      text_ += scalar(member.key) + ":";
      write_below(member.value, depth);
    }
  }

  void write_sequence(const Node& node, int depth) {
    bool first = true;
    for (const Node& item : node.items) {
      if (!first) indent(depth);
      first = false;
      text_ += "- ";
      write(item, depth + 1);
    }
  }

  /// A member's value: collections on lines of their own; lists as deep as their key.
  void write_below(const Node& value, int depth) {
    const bool mapping = value.kind == Kind::kMapping && !value.members.empty();
    const bool sequence = value.kind == Kind::kSequence && !value.items.empty();
    if (!mapping && !sequence) {
      text_ += " " + scalar_of(value) + "\n";
      return;
    }
    const int inner = mapping ? depth + 1 : depth;
    text_ += "\n";
    indent(inner);
    write(value, inner);
  }

  void indent(int depth) { text_.append(static_cast<size_t>(2 * depth), ' '); }

  std::string text_;
};

}  // namespace

std::string to_yaml(const Node& node) {
  Writer writer;
  writer.write(node, 0);
  return writer.take();
}

}  // namespace trainyard::text

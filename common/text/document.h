#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

/// Strict documents: YAML or JSON text to a tree that knows where everything stood. What different
/// readers take for different values (`yes`, `0777`, `1_000`, duplicate keys, tags, merge keys) is
/// refused here, so that no field ever means something else to another tool.
namespace trainyard::text {

enum class Kind {
  kNull,
  kBool,
  kInteger,  ///< exact
  kNumber,   ///< finite, with fraction or exponent
  kString,
  kSequence,
  kMapping,
  kRefused,  ///< a scalar that no field may hold; a Problem says why
};

struct Member;

/// A value with its position.
struct Node {
  Kind kind = Kind::kNull;
  int line = 0;    ///< from 1
  int column = 0;  ///< from 1
  bool boolean = false;
  int64_t integer = 0;
  double number = 0;            ///< also set for kInteger
  std::string string;           ///< of scalars: the text as written, without quotes
  std::vector<Node> items;      ///< of kSequence
  std::vector<Member> members;  ///< of kMapping, in the order written, keys unique

  /// A member, or its value; nullptr where there is none or this is no mapping.
  const Member* find_member(std::string_view key) const;
  const Node* find(std::string_view key) const;
};

struct Member {
  std::string key;
  int line = 0;
  int column = 0;
  Node value;
};

/// Something wrong with the text itself.
struct Problem {
  int line = 0;
  int column = 0;
  std::string path;    ///< of the value, for example "spec.template.containers[0]"; may be empty
  std::string found;   ///< may be empty
  std::string wanted;  ///< and what to do

  bool operator==(const Problem&) const = default;
};

/// Everything is bounded: hostile text costs no more than large honest text.
struct Limits {
  int64_t bytes = 1 << 20;  ///< of the text; copies of anchored values hold at most 4 x as much
  int depth = 64;
  int64_t nodes = 100'000;  ///< after expansion of aliases
  int64_t problems = 100;
};

/// A tree and what is wrong with it. With `complete` false the text could not be read to its end
/// and `root` is null; otherwise the tree holds everything but what the problems name.
struct Document {
  Node root;
  std::vector<Problem> problems;
  bool complete = false;
};

/// Reads one YAML document. Anchors and aliases are expanded within the limits. Empty text is a
/// null root.
Document parse_yaml(std::string_view text, const Limits& limits = {});

/// Reads one JSON value (RFC 8259; duplicate keys refused).
Document parse_json(std::string_view text, const Limits& limits = {});

/// parse_json for text that starts as a JSON object or list of them does ('{' and then '"' or '}'),
/// parse_yaml for everything else.
Document parse(std::string_view text, const Limits& limits = {});

/// Whether older YAML takes this word (yes, no, on, off, y, n) for a truth value; as a plain scalar
/// it is refused.
bool is_boolean_word(std::string_view text);

/// The node as compact JSON. Refused scalars become null.
std::string to_json(const Node& node);

/// `path` extended by a key ("a.b"; described where it is no plain word) or an index ("a[3]").
std::string join_path(std::string_view path, std::string_view key);
std::string join_path(std::string_view path, size_t index);

/// The node in the words of a message: `"text"`, `12`, `a mapping`, `a list`, `nothing`; control
/// characters escaped, long text cut.
std::string describe(const Node& node);
/// Text in the same way.
std::string describe(std::string_view string);

}  // namespace trainyard::text

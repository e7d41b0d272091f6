#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/text/document.h"

namespace trainyard::text {

/// Where something stands, from 1.
struct Mark {
  int line = 1;
  int column = 1;
};

/// Thrown inside a reader to stop at a problem that leaves nothing to go on with; caught at the
/// reader's surface.
struct StopReading {};

/// What a tree takes.
struct TreeSize {
  int64_t nodes = 0;       ///< itself included
  int64_t text_bytes = 0;  ///< of scalars and keys

  TreeSize& operator+=(const TreeSize& other) {
    nodes += other.nodes;
    text_bytes += other.text_bytes;
    return *this;
  }
};
TreeSize size_of(const Node& node);

/// What both readers have in common: turns events into a tree and enforces the limits.
class TreeBuilder {
 public:
  explicit TreeBuilder(const Limits& limits) : limits_(limits) {}

  void begin_mapping(Mark mark) { begin(Kind::kMapping, mark); }
  void begin_sequence(Mark mark) { begin(Kind::kSequence, mark); }
  /// Ends the innermost collection and returns where its node now is, until the next event.
  const Node& end();
  /// The key of the next value; a duplicate is noted and its value dropped.
  void key(std::string key, Mark mark);
  /// A finished value: a scalar, or a copy of an anchored node. Returns where it now is.
  const Node& value(Node node);

  /// True outside every collection.
  bool at_root() const { return open_.empty(); }
  /// True between a mapping's key and after its last value: the next scalar is a key.
  bool expects_key() const;
  /// Counts nodes against the limit.
  void charge(int64_t nodes, Mark mark);
  /// Counts a copy of an anchored node against the limits: its nodes, and its text, of which few
  /// nodes may hold much.
  void charge_copy(const TreeSize& size, Mark mark);
  /// Notes a problem at the place where the next value will stand.
  void problem(Mark mark, std::string found, std::string wanted);
  /// Notes a problem and stops reading.
  [[noreturn]] void stop(Mark mark, std::string found, std::string wanted);
  /// The finished document.
  Document take();
  /// What was read so far is not worth keeping: problems only.
  Document take_incomplete();

 private:
  struct Open {
    Node node;
    std::string key;  ///< of the value being read, in a mapping
    Mark key_mark;
    std::unordered_map<std::string, int> key_lines;  ///< of the keys so far
    bool has_key = false;
    bool drop_value = false;  ///< the key was a duplicate
  };

  void begin(Kind kind, Mark mark);
  std::string path() const;

  Limits limits_;
  std::vector<Open> open_;
  Node root_;
  Node dropped_;
  int64_t nodes_ = 0;
  int64_t copied_bytes_ = 0;  ///< text of anchored nodes that was copied
  std::vector<Problem> problems_;
};

/// A plain (unquoted) scalar as its value; kRefused with the reason in `wanted` for what readers
/// disagree about.
struct PlainScalar {
  Node node;
  std::string wanted;
};
PlainScalar resolve_plain(std::string_view text, Mark mark);

/// Strips a byte order mark and checks size, encoding and control characters; a problem, or
/// nullopt.
std::optional<Problem> check_bytes(std::string_view& text, const Limits& limits);

}  // namespace trainyard::text

#include "worker/data/text/split_pattern.h"

#include <algorithm>
#include <cstdio>
#include <map>

#include "common/base/check.h"
#include "worker/data/text/utf8.h"

namespace trainyard::data {
namespace {

using Kind = ExpressionNode::Kind;
using Bytes = std::bitset<256>;

constexpr size_t kAscii = 0x80;
constexpr std::string_view kWhiteSpace = "\t\n\v\f\r ";

// The classes of all code points, and those that each set consists of.
struct Classes {
  std::vector<uint8_t> of;
  std::vector<Bytes> sets;
};

Result<Classes> divide(const std::vector<CodePointSet>& sets) {
  std::vector<char32_t> borders = {kAscii, kCodePoints};
  for (const CodePointSet& set : sets) {
    for (const CodePointRange& range : set.ranges()) {
      if (range.first > kAscii) borders.push_back(range.first);
      if (range.last + 1 > kAscii) borders.push_back(range.last + 1);
    }
  }
  std::ranges::sort(borders);
  borders.erase(std::unique(borders.begin(), borders.end()), borders.end());

  Classes classes;
  classes.of.resize(kCodePoints);
  classes.sets.resize(sets.size());
  for (size_t c = 0; c < kAscii; ++c) {
    classes.of[c] = static_cast<uint8_t>(c);
    for (size_t i = 0; i < sets.size(); ++i)
      classes.sets[i][c] = sets[i].contains(static_cast<char32_t>(c));
  }
  std::map<std::vector<bool>, size_t> known;  // in which sets -> class
  for (size_t i = 0; i + 1 < borders.size(); ++i) {
    std::vector<bool> within(sets.size());
    for (size_t s = 0; s < sets.size(); ++s)
      within[s] = sets[s].contains(borders[i]);
    const size_t number = known.emplace(within, kAscii + known.size()).first->second;
    if (number > 0xFF) {
      return Error{ErrorCode::kInvalidData, "it distinguishes more than 128 kinds of characters"};
    }
    for (size_t s = 0; s < sets.size(); ++s)
      classes.sets[s][number] = within[s];
    std::fill(classes.of.begin() + static_cast<std::ptrdiff_t>(borders[i]),
              classes.of.begin() + static_cast<std::ptrdiff_t>(borders[i + 1]),
              static_cast<uint8_t>(number));
  }
  return classes;
}

std::string spelled(const Bytes& set) {
  if (set.none()) return "(?!)";
  std::string text = "[";
  for (size_t byte = 0; byte < set.size(); ++byte) {
    if (!set[byte]) continue;
    std::array<char, 8> written = {};
    std::snprintf(written.data(), written.size(), "\\x%02X", static_cast<unsigned>(byte));
    text += written.data();
  }
  return text + "]";
}

// The node in PCRE2's syntax.
std::string spelled(const ExpressionNode& node, const std::vector<Bytes>& sets) {
  switch (node.kind) {
    case Kind::kSet:
      return spelled(sets[node.set]);
    case Kind::kAhead:
      return "(?=" + spelled(sets[node.set]) + ")";
    case Kind::kNotAhead:
      return "(?!" + spelled(sets[node.set]) + ")";
    case Kind::kRepeat:
      return spelled(node.children[0], sets) + "{" + std::to_string(node.least) + "," +
             (node.most == ExpressionNode::kUnbounded ? "" : std::to_string(node.most)) + "}" +
             (node.lazy ? "?" : "");
    case Kind::kSequence:
    case Kind::kChoice:
      break;
  }
  std::string text = "(?:";
  for (size_t i = 0; i < node.children.size(); ++i) {
    if (i > 0 && node.kind == Kind::kChoice) text += "|";
    text += spelled(node.children[i], sets);
  }
  return text + ")";
}

// Which sets a match of a node can begin and end with (Glushkov 1961).
struct Ends {
  std::vector<size_t> first;
  std::vector<size_t> last;
  bool empty = false;  // it can match nothing
};

void append(std::vector<size_t>& to, const std::vector<size_t>& more) {
  to.insert(to.end(), more.begin(), more.end());
}

using Follow = std::map<std::pair<size_t, size_t>, bool>;

void follow(const std::vector<size_t>& last, const std::vector<size_t>& first, Follow& pairs) {
  for (const size_t a : last) {
    for (const size_t b : first)
      pairs[{a, b}] = true;
  }
}

Ends ends_of(const ExpressionNode& node, Follow& pairs) {
  Ends ends;
  switch (node.kind) {
    case Kind::kSet:
      return {{node.set}, {node.set}, false};
    case Kind::kAhead:
    case Kind::kNotAhead:
      return {{}, {}, true};
    case Kind::kRepeat:
      ends = ends_of(node.children[0], pairs);
      if (node.most != 1) follow(ends.last, ends.first, pairs);
      ends.empty = ends.empty || node.least == 0;
      return ends;
    case Kind::kChoice:
      for (const ExpressionNode& child : node.children) {
        const Ends one = ends_of(child, pairs);
        append(ends.first, one.first);
        append(ends.last, one.last);
        ends.empty = ends.empty || one.empty;
      }
      return ends;
    case Kind::kSequence:
      break;
  }
  ends.empty = true;
  for (const ExpressionNode& child : node.children) {
    const Ends one = ends_of(child, pairs);
    follow(ends.last, one.first, pairs);
    if (ends.empty) append(ends.first, one.first);
    if (!one.empty) ends.last.clear();
    append(ends.last, one.last);
    ends.empty = ends.empty && one.empty;
  }
  return ends;
}

void collect_ahead(const ExpressionNode& node, std::vector<size_t>& sets) {
  if (node.kind == Kind::kAhead || node.kind == Kind::kNotAhead) sets.push_back(node.set);
  for (const ExpressionNode& child : node.children)
    collect_ahead(child, sets);
}

// The set of a branch that one character of it satisfies.
const ExpressionNode* single_set(const ExpressionNode& branch) {
  const ExpressionNode* node = &branch;
  while (node->kind == Kind::kSequence && node->children.size() == 1)
    node = node->children.data();
  if (node->kind == Kind::kRepeat && node->least <= 1) node = node->children.data();
  return node->kind == Kind::kSet ? node : nullptr;
}

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// Whether a branch is a character that may be a space and is no ASCII letter, or none, and then
// characters of which the ASCII letters are those in ASCII: ` ?\p{L}+`.
bool is_word_branch(const ExpressionNode& branch, const std::vector<Bytes>& sets) {
  if (branch.kind != Kind::kSequence || branch.children.size() != 2) return false;
  const ExpressionNode& before = branch.children[0];
  const ExpressionNode& word = branch.children[1];
  if (before.kind != Kind::kRepeat || before.least != 0 || before.most != 1 || before.lazy ||
      before.children[0].kind != Kind::kSet || word.kind != Kind::kRepeat || word.least != 1 ||
      word.most != ExpressionNode::kUnbounded || word.lazy || word.children[0].kind != Kind::kSet)
    return false;
  const Bytes& prefix = sets[before.children[0].set];
  const Bytes& letters = sets[word.children[0].set];
  for (size_t c = 0; c < kAscii; ++c) {
    const bool letter = is_letter(static_cast<char>(c));
    if (letters[c] != letter || (letter && prefix[c])) return false;
  }
  return prefix[' '];
}

// Whether the first branch that a text of an ASCII letter, perhaps behind a space, can match is
// such a one.
bool has_word_branch(const ExpressionNode& root, const std::vector<Bytes>& sets) {
  if (root.kind != Kind::kChoice) return false;
  for (const ExpressionNode& branch : root.children) {
    if (is_word_branch(branch, sets)) return true;
    Follow unused;
    const Ends ends = ends_of(branch, unused);
    if (ends.empty) return false;
    for (const size_t first : ends.first) {
      for (size_t c = 0; c < kAscii; ++c) {
        if (sets[first][c] && (c == ' ' || is_letter(static_cast<char>(c)))) return false;
      }
    }
  }
  return false;
}

}  // namespace

Result<SplitPattern> SplitPattern::create(const SplitExpression& expression) {
  TRAINYARD_ASSIGN(Classes classes, divide(expression.sets));
  TRAINYARD_ASSIGN(Pattern pattern, Pattern::compile(spelled(expression.root, classes.sets),
                                                     Pattern::Subject::kBytes));
  SplitPattern made(std::move(pattern), std::move(classes.of));
  made.find_borders(expression, classes.sets);
  made.has_plain_words_ = has_word_branch(expression.root, classes.sets);
  return made;
}

SplitPattern::SplitPattern(Pattern pattern, std::vector<uint8_t> classes)
    : pattern_(std::move(pattern)), classes_(std::move(classes)) {}

void SplitPattern::find_borders(const SplitExpression& expression, const std::vector<Bytes>& sets) {
  Follow pairs;
  ends_of(expression.root, pairs);
  std::vector<size_t> ahead;
  collect_ahead(expression.root, ahead);
  for (const char space : kWhiteSpace) {
    const auto place = static_cast<unsigned char>(space);
    for (const auto& [pair, unused] : pairs) {
      if (sets[pair.second][place]) crossed_[place] |= sets[pair.first];
    }
    for (const size_t set : ahead) {
      if (sets[set][place]) crossed_[place].set();
    }
    const auto matches = [&](const ExpressionNode& branch) {
      const ExpressionNode* set = single_set(branch);
      return set != nullptr && sets[set->set][place];
    };
    matched_[place] = expression.root.kind == Kind::kChoice
                          ? std::ranges::any_of(expression.root.children, matches)
                          : matches(expression.root);
  }
}

std::string_view SplitPattern::classes_of(std::string_view text) {
  const bool ascii =
      std::ranges::none_of(text, [](char c) { return static_cast<unsigned char>(c) >= kAscii; });
  if (ascii) return text;
  scratch_.clear();
  for (size_t position = 0; position < text.size();) {
    const Character character = character_at(text, position);
    scratch_.push_back(static_cast<char>(classes_[character.code_point]));
    position += character.bytes;
  }
  return scratch_;
}

size_t SplitPattern::ascii_word(std::string_view classes, size_t position) const {
  if (!has_plain_words_) return 0;
  const size_t first = position + (classes[position] == ' ' ? 1 : 0);
  size_t end = first;
  while (end < classes.size() && is_letter(classes[end]))
    ++end;
  const bool is_sure =
      end > first && (end == classes.size() || static_cast<unsigned char>(classes[end]) < kAscii);
  return is_sure ? end - position : 0;
}

size_t SplitPattern::advance(std::string_view text, std::string_view classes, size_t position,
                             size_t characters) {
  if (text.size() == classes.size()) return position + characters;
  for (; characters > 0; --characters) {
    const auto lead = static_cast<unsigned char>(text[position]);
    position += lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  }
  return position;
}

bool SplitPattern::may_cut(char32_t before, char space) const {
  return !crossed_[static_cast<unsigned char>(space)][classes_[before]];
}

bool SplitPattern::always_matches(char space) const {
  return matched_[static_cast<unsigned char>(space)];
}

}  // namespace trainyard::data

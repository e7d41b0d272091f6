#include "worker/data/text/split_expression.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "worker/data/text/utf8.h"

namespace trainyard::data {
namespace {

using Kind = ExpressionNode::Kind;

constexpr size_t kExpressionBytesMax = 4096;
constexpr int kDepthMax = 32;
constexpr int kRepeatMax = 1000;
// In known tokenizers an alternative has four repetitions of variable length at most, and one
// choice of seven. What a failing match may try is bounded by the ways times the text's length to
// the power of the repetitions.
constexpr int kVariableRepeatsMax = 6;
// Of them, those that may take many characters: two in known tokenizers. Compiled expressions do
// not count the steps that these take back, so no limit of PCRE2's ends such a search.
constexpr int kLongRepeatsMax = 2;
constexpr int kLongRepeat = 16;
constexpr int64_t kWaysMax = 1024;

bool is_ascii_letter(char32_t c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

size_t place_of(std::vector<CodePointSet>& sets, CodePointSet set) {
  const auto known = std::ranges::find(sets, set);
  if (known != sets.end()) return static_cast<size_t>(known - sets.begin());
  sets.push_back(std::move(set));
  return sets.size() - 1;
}

bool matches_empty(const ExpressionNode& node) {
  switch (node.kind) {
    case Kind::kSet:
      return false;
    case Kind::kSequence:
      return std::ranges::all_of(node.children, matches_empty);
    case Kind::kChoice:
      return std::ranges::any_of(node.children, matches_empty);
    case Kind::kRepeat:
      return node.least == 0;
    case Kind::kAhead:
    case Kind::kNotAhead:
      return true;
  }
  return true;
}

// How many characters more than its least a repetition may take.
int64_t slack_of(const ExpressionNode& repeat) {
  return repeat.most == ExpressionNode::kUnbounded ? INT64_MAX
                                                   : int64_t{repeat.most} - repeat.least;
}

// The most repetitions of at least such slack that a match of the node goes through.
int repeats_of(const ExpressionNode& node, int64_t slack) {
  int count = node.kind == Kind::kRepeat && slack_of(node) >= slack ? 1 : 0;
  for (const ExpressionNode& child : node.children) {
    const int inside = repeats_of(child, slack);
    count = node.kind == Kind::kChoice ? std::max(count, inside) : count + inside;
  }
  return count;
}

// The ways to choose between the alternatives within the node; kWaysMax + 1 stands for more.
int64_t ways_of(const ExpressionNode& node) {
  const bool is_choice = node.kind == Kind::kChoice;
  int64_t ways = is_choice ? 0 : 1;
  for (const ExpressionNode& child : node.children) {
    const int64_t inside = ways_of(child);
    ways = std::min(is_choice ? ways + inside : ways * inside, kWaysMax + 1);
  }
  return ways;
}

class Parser {
 public:
  explicit Parser(std::string_view expression) : text_(expression) {}

  Result<SplitExpression> parse() && {
    if (text_.size() > kExpressionBytesMax) {
      return Error{ErrorCode::kInvalidData, "found " + std::to_string(text_.size()) +
                                                " bytes, wanted at most " +
                                                std::to_string(kExpressionBytesMax)};
    }
    if (well_formed_prefix(text_) != text_.size()) {
      return Error{ErrorCode::kInvalidData, "is not UTF-8"};
    }
    TRAINYARD_ASSIGN(result_.root, choice(0));
    if (at_ < text_.size()) return refused(")");
    if (matches_empty(result_.root)) {
      return Error{ErrorCode::kInvalidData,
                   "it matches the empty text, wanted one that takes a character at least"};
    }
    return std::move(result_);
  }

 private:
  bool starts_with(std::string_view wanted) const { return text_.substr(at_).starts_with(wanted); }
  bool take(std::string_view wanted) {
    if (!starts_with(wanted)) return false;
    at_ += wanted.size();
    return true;
  }
  char32_t take_character() {
    const Character character = character_at(text_, at_);
    at_ += character.bytes;
    return character.code_point;
  }
  Error refused(std::string_view construct) const {
    return {ErrorCode::kInvalidData, "found '" + std::string(construct) + "' at byte " +
                                         std::to_string(at_ + 1) +
                                         ", which this version does not translate"};
  }
  // What stands at the place and is refused: a few characters of it.
  Error refused_here(size_t bytes) const {
    std::string_view rest = text_.substr(at_);
    bytes = std::min(bytes, rest.size());
    while (bytes < rest.size() && well_formed_prefix(rest.substr(0, bytes)) != bytes)
      ++bytes;
    return refused(rest.substr(0, bytes));
  }

  ExpressionNode set_node(CodePointSet set, Kind kind = Kind::kSet) {
    ExpressionNode node;
    node.kind = kind;
    node.set = place_of(result_.sets, std::move(set));
    return node;
  }

  Result<ExpressionNode> choice(int depth) {
    if (depth > kDepthMax) return refused_here(1);
    ExpressionNode node;
    node.kind = Kind::kChoice;
    do {
      TRAINYARD_ASSIGN(ExpressionNode branch, sequence(depth));
      node.children.push_back(std::move(branch));
    } while (take("|"));
    if (node.children.size() == 1) {
      ExpressionNode only = std::move(node.children[0]);
      return only;
    }
    return node;
  }

  Result<ExpressionNode> sequence(int depth) {
    const size_t begin = at_;
    ExpressionNode node;
    while (at_ < text_.size() && !starts_with("|") && !starts_with(")")) {
      TRAINYARD_TRY(check_folding());
      TRAINYARD_ASSIGN(ExpressionNode part, atom(depth));
      TRAINYARD_ASSIGN(part, quantified(std::move(part)));
      node.children.push_back(std::move(part));
    }
    TRAINYARD_TRY(check_cost(node, begin));
    return node;
  }

  // An alternative in which a match that fails could take years to do so is refused.
  Status check_cost(const ExpressionNode& alternative, size_t begin) const {
    const auto refuse = [&](const std::string& found, int64_t wanted) {
      return Error{ErrorCode::kInvalidData, "found " + found + " in the alternative at byte " +
                                                std::to_string(begin + 1) + ", wanted at most " +
                                                std::to_string(wanted)};
    };
    const int repeats = repeats_of(alternative, 1);
    if (repeats > kVariableRepeatsMax) {
      return refuse(std::to_string(repeats) + " repetitions of variable length",
                    kVariableRepeatsMax);
    }
    const int of_many = repeats_of(alternative, kLongRepeat);
    if (of_many > kLongRepeatsMax)
      return refuse(std::to_string(of_many) + " repetitions of many characters", kLongRepeatsMax);
    if (ways_of(alternative) > kWaysMax)
      return refuse("too many combinations of choices", kWaysMax);
    return {};
  }

  // Two letters that together are the other case of one character ("ss" of U+00DF).
  Status check_folding() const {
    if (!ignores_case_) return {};
    for (const std::string_view pair : {"ss", "ff", "fi", "fl", "st"}) {
      std::string two(text_.substr(at_, 2));
      std::ranges::transform(two, two.begin(),
                             [](char c) { return c >= 'A' && c <= 'Z' ? char(c + 32) : c; });
      if (two == pair) return refused_here(2);
    }
    return {};
  }

  Result<ExpressionNode> atom(int depth) {
    if (starts_with("(")) return group(depth);
    const char c = text_[at_];
    if (c == '[' || c == '.' || c == '\\') {
      if (ignores_case_ && c != '\\') return refused_here(1);
      if (c == '[') return character_class();
      if (c == '.') {
        ++at_;
        return set_node(CodePointSet({{'\n', '\n'}}).complement());
      }
      const size_t begin = at_;
      TRAINYARD_ASSIGN(CodePointSet set, escape());
      const bool single = set.ranges().size() == 1 && set.ranges()[0].first == set.ranges()[0].last;
      if (ignores_case_ && !single) {
        at_ = begin;
        return refused_here(2);
      }
      return single ? character_node(set.ranges()[0].first) : set_node(std::move(set));
    }
    if (std::string_view("^$*+?{}]").find(c) != std::string_view::npos) return refused_here(1);
    if (ignores_case_ && static_cast<unsigned char>(c) >= 0x80) return refused_here(1);
    return character_node(take_character());
  }

  // A character, where case is ignored with its others: Unicode's simple case folding of ASCII.
  ExpressionNode character_node(char32_t c) {
    if (!ignores_case_ || !is_ascii_letter(c)) return set_node(CodePointSet({{c, c}}));
    std::vector<CodePointRange> cases = {{c | 0x20, c | 0x20}, {c & ~0x20U, c & ~0x20U}};
    if ((c | 0x20) == 's') cases.push_back({0x17F, 0x17F});
    if ((c | 0x20) == 'k') cases.push_back({0x212A, 0x212A});
    return set_node(CodePointSet(std::move(cases)));
  }

  Result<ExpressionNode> group(int depth) {
    if (starts_with("(?=") || starts_with("(?!")) return ahead();
    const bool ignored_case = ignores_case_;
    if (take("(?i:")) {
      ignores_case_ = true;
    } else if (!take("(?:")) {
      if (starts_with("(?")) return refused_here(4);
      if (starts_with("(*")) return refused_here(2);
      ++at_;
    }
    TRAINYARD_ASSIGN(ExpressionNode inside, choice(depth + 1));
    ignores_case_ = ignored_case;
    if (!take(")")) return refused("(");
    // One that a quantifier can be told from a single character by.
    ExpressionNode node;
    node.children.push_back(std::move(inside));
    return node;
  }

  Result<ExpressionNode> ahead() {
    const size_t begin = at_;
    const Kind kind = starts_with("(?=") ? Kind::kAhead : Kind::kNotAhead;
    at_ += 3;
    if (at_ < text_.size() && std::string_view("(|)").find(text_[at_]) == std::string_view::npos) {
      TRAINYARD_ASSIGN(const ExpressionNode inside, atom(kDepthMax));
      if (take(")")) {
        ExpressionNode node;
        node.kind = kind;
        node.set = inside.set;
        return node;
      }
    }
    at_ = begin;
    return refused_here(text_.size());
  }

  Result<ExpressionNode> quantified(ExpressionNode part) {
    const size_t begin = at_;
    ExpressionNode repeat;
    repeat.kind = Kind::kRepeat;
    bool interval = false;
    if (take("?")) {
      repeat.least = 0;
    } else if (take("*")) {
      repeat.least = 0;
      repeat.most = ExpressionNode::kUnbounded;
    } else if (take("+")) {
      repeat.most = ExpressionNode::kUnbounded;
    } else if (take("{")) {
      interval = true;
      const auto bounds = interval_bounds();
      if (!bounds) {
        at_ = begin;
        return refused_here(1);
      }
      std::tie(repeat.least, repeat.most) = *bounds;
    } else {
      return part;
    }
    if (!interval && take("?")) repeat.lazy = true;
    // What is nested could take time exponential in a text's length.
    const bool may_repeat =
        part.kind == Kind::kSet || (repeat.most == 1 && part.kind == Kind::kSequence);
    const bool follows =
        at_ < text_.size() && std::string_view("?*+{").find(text_[at_]) != std::string_view::npos;
    if (!may_repeat || follows || matches_empty(part)) {
      at_ = begin;
      return refused_here(follows ? 2 : 1);
    }
    repeat.children.push_back(std::move(part));
    return repeat;
  }

  // Behind "{": "2}", "2,}", "2,5}".
  std::optional<std::pair<int, int>> interval_bounds() {
    const auto number = [&]() -> std::optional<int> {
      std::optional<int> value;
      while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9' &&
             value.value_or(0) <= kRepeatMax)
        value = value.value_or(0) * 10 + (text_[at_++] - '0');
      return value;
    };
    const std::optional<int> least = number();
    if (!least) return std::nullopt;
    std::optional<int> most = least;
    if (take(",")) {
      most = number();
      if (!most) most = ExpressionNode::kUnbounded;
    }
    const bool ordered = *most == ExpressionNode::kUnbounded || (*most >= *least && *most > 0);
    if (!take("}") || !ordered || *least > kRepeatMax || *most > kRepeatMax) return std::nullopt;
    return std::pair(*least, *most);
  }

  // "[...]"; the place is at its beginning.
  Result<ExpressionNode> character_class() {
    const size_t begin = at_++;
    const bool negated = take("^");
    std::vector<CodePointRange> ranges;
    for (bool first = true; !take("]"); first = false) {
      if (at_ >= text_.size()) {
        at_ = begin;
        return refused_here(1);
      }
      if (starts_with("[") || starts_with("&&") || (first && starts_with("]")))
        return refused_here(starts_with("[") ? 2 : 1);
      TRAINYARD_ASSIGN(const CodePointSet member, class_member());
      if (starts_with("-") && !text_.substr(at_).starts_with("-]")) {
        const size_t dash = at_++;
        const bool more = at_ < text_.size() && text_[at_] != '[';
        TRAINYARD_ASSIGN(const CodePointSet last, more ? class_member() : CodePointSet());
        const bool singles = member.ranges().size() == 1 && last.ranges().size() == 1 &&
                             member.ranges()[0].first == member.ranges()[0].last &&
                             last.ranges()[0].first == last.ranges()[0].last &&
                             member.ranges()[0].first <= last.ranges()[0].first;
        if (!singles) {
          at_ = dash;
          return refused_here(2);
        }
        ranges.push_back({member.ranges()[0].first, last.ranges()[0].first});
      } else {
        ranges.insert(ranges.end(), member.ranges().begin(), member.ranges().end());
      }
    }
    CodePointSet set(std::move(ranges));
    return set_node(negated ? set.complement() : set);
  }

  Result<CodePointSet> class_member() {
    if (starts_with("\\")) return escape();
    const char32_t c = take_character();
    return CodePointSet({{c, c}});
  }

  // At a backslash.
  Result<CodePointSet> escape() {
    const size_t begin = at_++;
    const auto refuse = [&](size_t bytes) {
      at_ = begin;
      return refused_here(bytes);
    };
    if (at_ >= text_.size()) return refuse(1);
    const char c = text_[at_++];
    switch (c) {
      case 's':
        return white_space_set();
      case 'S':
        return white_space_set().complement();
      case 'd':
        return *category_set("Nd");
      case 'D':
        return category_set("Nd")->complement();
      case 'n':
        return CodePointSet({{'\n', '\n'}});
      case 'r':
        return CodePointSet({{'\r', '\r'}});
      case 't':
        return CodePointSet({{'\t', '\t'}});
      case 'f':
        return CodePointSet({{'\f', '\f'}});
      case 'v':
        return CodePointSet({{'\v', '\v'}});
      case 'p':
      case 'P': {
        const size_t end = text_.find('}', at_);
        if (!starts_with("{") || end == std::string_view::npos) return refuse(2);
        const auto set = category_set(text_.substr(at_ + 1, end - at_ - 1));
        if (!set) return refuse(end + 1 - begin);
        at_ = end + 1;
        return c == 'p' ? *set : set->complement();
      }
      case 'x':
      case 'u': {
        const auto value = hexadecimal(c == 'u');
        if (!value) return refuse(2);
        return CodePointSet({{*value, *value}});
      }
      default:
        break;
    }
    const bool stands_for_itself = c > ' ' && c < 0x7F &&
                                   !is_ascii_letter(static_cast<char32_t>(c)) &&
                                   !(c >= '0' && c <= '9') && c != '<' && c != '>';
    if (!stands_for_itself && c != ' ') return refuse(2);
    return CodePointSet({{static_cast<char32_t>(c), static_cast<char32_t>(c)}});
  }

  // Behind "\u" four digits; behind "\x" some in braces, or two that are ASCII.
  std::optional<char32_t> hexadecimal(bool four) {
    const bool braces = !four && take("{");
    const size_t wanted = four ? 4 : braces ? 6 : 2;
    char32_t value = 0;
    size_t digits = 0;
    for (; digits < wanted && at_ < text_.size(); ++digits, ++at_) {
      const char c = text_[at_];
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) break;
      value = value << 4 | static_cast<char32_t>(digit);
    }
    const bool whole = braces ? digits > 0 && take("}") : digits == wanted;
    const bool known = value < kCodePoints && (value < 0xD800 || value > 0xDFFF) &&
                       (four || braces || value < 0x80);
    return whole && known ? std::optional(value) : std::nullopt;
  }

  std::string_view text_;
  size_t at_ = 0;
  bool ignores_case_ = false;
  SplitExpression result_;
};

}  // namespace

Result<SplitExpression> parse_split_expression(std::string_view expression) {
  return Parser(expression).parse();
}

Result<SplitExpression> literal_expression(std::string_view text) {
  if (text.empty() || text.size() > kExpressionBytesMax) {
    return Error{ErrorCode::kInvalidData, "found " + std::to_string(text.size()) +
                                              " bytes, wanted 1 to " +
                                              std::to_string(kExpressionBytesMax)};
  }
  SplitExpression result;
  for (size_t position = 0; position < text.size();) {
    const Character character = character_at(text, position);
    position += character.bytes;
    ExpressionNode node;
    node.kind = Kind::kSet;
    node.set = place_of(result.sets, CodePointSet({{character.code_point, character.code_point}}));
    result.root.children.push_back(std::move(node));
  }
  return result;
}

}  // namespace trainyard::data

#include "common/text/tree_builder.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <system_error>

#include "common/base/check.h"
#include "common/text/utf8.h"

namespace trainyard::text {
namespace {

/// Copies of anchored values may hold so many times the text that a document may have.
constexpr int64_t kCopiesOfText = 4;

}  // namespace

void TreeBuilder::begin(Kind kind, Mark mark) {
  if (static_cast<int>(open_.size()) >= limits_.depth) {
    stop(mark, "nesting deeper than " + std::to_string(limits_.depth) + " levels",
         "a flatter document");
  }
  charge(1, mark);
  Open open;
  open.node.kind = kind;
  open.node.line = mark.line;
  open.node.column = mark.column;
  open_.push_back(std::move(open));
}

const Node& TreeBuilder::end() {
  TRAINYARD_CHECK(!open_.empty());
  Node node = std::move(open_.back().node);
  open_.pop_back();
  --nodes_;  // value() charges it again
  return value(std::move(node));
}

void TreeBuilder::key(std::string key, Mark mark) {
  Open& open = open_.back();
  open.key = std::move(key);
  open.key_mark = mark;
  open.has_key = true;
  const auto [first, fresh] = open.key_lines.try_emplace(open.key, mark.line);
  open.drop_value = !fresh;
  if (fresh) return;
  problem(mark, "a second key " + describe(open.key),
          "each key once (the first is on line " + std::to_string(first->second) + ")");
}

const Node& TreeBuilder::value(Node node) {
  charge(1, {node.line, node.column});
  if (open_.empty()) return root_ = std::move(node);
  Open& open = open_.back();
  if (open.node.kind == Kind::kSequence) return open.node.items.emplace_back(std::move(node));
  open.has_key = false;
  if (open.drop_value) return dropped_ = std::move(node);
  open.node.members.push_back(
      {std::move(open.key), open.key_mark.line, open.key_mark.column, std::move(node)});
  return open.node.members.back().value;
}

bool TreeBuilder::expects_key() const {
  return !open_.empty() && open_.back().node.kind == Kind::kMapping && !open_.back().has_key;
}

void TreeBuilder::charge(int64_t nodes, Mark mark) {
  nodes_ += nodes;
  if (nodes_ <= limits_.nodes) return;
  stop(mark, "more than " + std::to_string(limits_.nodes) + " values, aliases expanded",
       "a smaller document");
}

void TreeBuilder::charge_copy(const TreeSize& size, Mark mark) {
  charge(size.nodes, mark);
  copied_bytes_ += size.text_bytes;
  const int64_t most = kCopiesOfText * limits_.bytes;
  if (copied_bytes_ <= most) return;
  stop(mark, "more than " + std::to_string(most) + " bytes of text in copies, aliases expanded",
       "a smaller document");
}

void TreeBuilder::problem(Mark mark, std::string found, std::string wanted) {
  problems_.push_back({mark.line, mark.column, path(), std::move(found), std::move(wanted)});
  if (static_cast<int64_t>(problems_.size()) >= limits_.problems) throw StopReading{};
}

void TreeBuilder::stop(Mark mark, std::string found, std::string wanted) {
  problems_.push_back({mark.line, mark.column, path(), std::move(found), std::move(wanted)});
  throw StopReading{};
}

std::string TreeBuilder::path() const {
  std::string path;
  for (const Open& open : open_) {
    if (open.node.kind == Kind::kSequence) {
      path = join_path(path, open.node.items.size());
    } else if (open.has_key) {
      path = join_path(path, open.key);
    }
  }
  return path;
}

Document TreeBuilder::take() { return {std::move(root_), std::move(problems_), true}; }

Document TreeBuilder::take_incomplete() { return {Node{}, std::move(problems_), false}; }

namespace {

constexpr std::string_view kBooleanWords[] = {"yes", "no", "on", "off", "y", "n"};

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

size_t skip_digits(std::string_view text, size_t at) {
  while (at < text.size() && is_digit(text[at]))
    ++at;
  return at;
}

enum class NumberShape { kNone, kInteger, kFraction };

/// The shape by JSON's grammar (RFC 8259 section 6); nothing else is a number here.
NumberShape number_shape(std::string_view text) {
  size_t at = !text.empty() && text[0] == '-' ? 1 : 0;
  const size_t whole = at;
  at = skip_digits(text, at);
  if (at == whole || (text[whole] == '0' && at - whole > 1)) return NumberShape::kNone;
  NumberShape shape = NumberShape::kInteger;
  if (at < text.size() && text[at] == '.') {
    const size_t fraction = ++at;
    at = skip_digits(text, at);
    if (at == fraction) return NumberShape::kNone;
    shape = NumberShape::kFraction;
  }
  if (at < text.size() && (text[at] == 'e' || text[at] == 'E')) {
    ++at;
    if (at < text.size() && (text[at] == '-' || text[at] == '+')) ++at;
    const size_t exponent = at;
    at = skip_digits(text, at);
    if (at == exponent) return NumberShape::kNone;
    shape = NumberShape::kFraction;
  }
  return at == text.size() ? shape : NumberShape::kNone;
}

/// What YAML 1.1, YAML 1.2 or a common reader takes for a number although it is none here:
/// 0777, 0o17, 0x1F, 0b1, 1_000, +5, .5, 5., 12:30:45, .inf, .nan (yaml.org/type/{int,float}.html).
bool is_disputed_number(std::string_view text) {
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) text.remove_prefix(1);
  if (text.empty()) return false;
  const std::string word = lower(text);
  if (word == ".inf" || word == ".nan") return true;
  const bool prefixed =
      word.size() > 2 && word[0] == '0' && (word[1] == 'x' || word[1] == 'o' || word[1] == 'b');
  if (prefixed) {
    return word.find_first_not_of("0123456789abcdef_", 2) == std::string::npos;
  }
  if (!is_digit(word[0]) && !(word[0] == '.' && word.size() > 1 && is_digit(word[1]))) return false;
  if (word.find(':') != std::string::npos) {  // base 60: groups from 0 to 59
    if (word.find_first_not_of("0123456789_:.") != std::string::npos) return false;
    for (size_t colon = word.find(':'); colon != std::string::npos;
         colon = word.find(':', colon + 1)) {
      const size_t end = std::min(word.find_first_of(":.", colon + 1), word.size());
      const size_t digits = end - colon - 1;
      if (digits < 1 || digits > 2 || (digits == 2 && word[colon + 1] > '5')) return false;
    }
    return true;
  }
  std::string bare;
  std::copy_if(word.begin(), word.end(), std::back_inserter(bare), [](char c) { return c != '_'; });
  size_t at = skip_digits(bare, 0);
  if (at < bare.size() && bare[at] == '.') at = skip_digits(bare, at + 1);
  if (at < bare.size() && bare[at] == 'e') {
    ++at;
    if (at < bare.size() && (bare[at] == '-' || bare[at] == '+')) ++at;
    const size_t exponent = at;
    at = skip_digits(bare, at);
    if (at == exponent) return false;
  }
  return at == bare.size();
}

void resolve_number(std::string_view text, NumberShape shape, PlainScalar& scalar) {
  const char* end = text.data() + text.size();
  if (shape == NumberShape::kInteger) {
    const auto result = std::from_chars(text.data(), end, scalar.node.integer);
    if (result.ec == std::errc()) {
      scalar.node.kind = Kind::kInteger;
      scalar.node.number = static_cast<double>(scalar.node.integer);
      return;
    }
    scalar.wanted = "a whole number from -9223372036854775808 to 9223372036854775807";
  } else {
    const auto result = std::from_chars(text.data(), end, scalar.node.number);
    if (result.ec == std::errc() && std::isfinite(scalar.node.number)) {
      scalar.node.kind = Kind::kNumber;
      return;
    }
    scalar.wanted = "a number that a double can hold";
  }
  scalar.node.kind = Kind::kRefused;
}

}  // namespace

bool is_boolean_word(std::string_view text) {
  const std::string word = lower(text);
  return std::find(std::begin(kBooleanWords), std::end(kBooleanWords), word) !=
         std::end(kBooleanWords);
}

PlainScalar resolve_plain(std::string_view text, Mark mark) {
  PlainScalar scalar;
  scalar.node.line = mark.line;
  scalar.node.column = mark.column;
  scalar.node.string = std::string(text);
  scalar.node.kind = Kind::kString;
  const std::string word = lower(text);
  if (word == "true" || word == "false") {
    scalar.node.kind = Kind::kBool;
    scalar.node.boolean = word == "true";
  } else if (text.empty() || word == "null" || text == "~") {
    scalar.node.kind = Kind::kNull;
  } else if (is_boolean_word(word)) {
    scalar.node.kind = Kind::kRefused;
    scalar.wanted = "true or false, or quotes around it where it is text";
  } else if (const NumberShape shape = number_shape(text); shape != NumberShape::kNone) {
    resolve_number(text, shape, scalar);
  } else if (is_disputed_number(text)) {
    scalar.node.kind = Kind::kRefused;
    scalar.wanted =
        "a plain decimal number such as 493 or 0.5, or quotes around it where it is text";
  }
  return scalar;
}

std::optional<Problem> check_bytes(std::string_view& text, const Limits& limits) {
  if (static_cast<int64_t>(text.size()) > limits.bytes) {
    return Problem{0, 0, "", std::to_string(text.size()) + " bytes",
                   "at most " + std::to_string(limits.bytes) + " bytes"};
  }
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  int line = 1;
  size_t line_start = 0;
  for (size_t at = 0; at < text.size();) {
    const auto byte = static_cast<unsigned char>(text[at]);
    const int column = static_cast<int>(at - line_start) + 1;
    const int length = utf8_length_at(text, at);
    if (length == 0) return Problem{line, column, "", "bytes that are not UTF-8", "UTF-8 text"};
    if ((byte < 0x20 && byte != '\t' && byte != '\n' && byte != '\r') || byte == 0x7F) {
      return Problem{line, column, "", "control character " + std::to_string(byte), "text"};
    }
    if (byte == '\n') {
      ++line;
      line_start = at + 1;
    }
    at += static_cast<size_t>(length);
  }
  return std::nullopt;
}

TreeSize size_of(const Node& node) {
  TreeSize size{1, std::ssize(node.string)};
  for (const Node& item : node.items)
    size += size_of(item);
  for (const Member& member : node.members) {
    size += size_of(member.value);
    size.text_bytes += std::ssize(member.key);
  }
  return size;
}

}  // namespace trainyard::text

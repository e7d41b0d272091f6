#include <string>

#include "common/text/document.h"
#include "common/text/tree_builder.h"
#include "common/text/utf8.h"

namespace trainyard::text {
namespace {

/// A recursive-descent reader of RFC 8259; the recursion is bounded by the depth limit.
class Reader {
 public:
  Reader(std::string_view text, const Limits& limits) : builder_(limits), text_(text) {}

  TreeBuilder& builder() { return builder_; }

  void read_document() {
    skip_space();
    if (at_ == text_.size()) return;  // a null root, as an empty YAML document
    read_value();
    skip_space();
    if (at_ < text_.size()) fail("the end of the text: one JSON value per file");
  }

 private:
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  Mark mark() const { return {line_, static_cast<int>(at_ - line_start_) + 1}; }

  [[noreturn]] void fail(std::string wanted) {
    std::string found = "the end of the text";
    if (at_ < text_.size()) {
      const int length = utf8_length_at(text_, at_);
      found = describe(text_.substr(at_, static_cast<size_t>(length)));
    }
    builder_.stop(mark(), std::move(found), std::move(wanted));
  }

  void expect(char wanted, const char* words) {
    if (peek() != wanted || at_ == text_.size()) fail(words);
    ++at_;
  }

  void skip_space() {
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '\n') {
        ++line_;
        line_start_ = at_ + 1;
      } else if (c != ' ' && c != '\t' && c != '\r') {
        return;
      }
    }
  }

  void read_value() {
    switch (peek()) {
      case '{':
        read_object();
        return;
      case '[':
        read_array();
        return;
      case '"':
        read_string_value();
        return;
      default:
        read_word();
        return;
    }
  }

  void read_object() {
    builder_.begin_mapping(mark());
    ++at_;
    skip_space();
    if (peek() != '}') {
      while (true) {
        const Mark key_mark = mark();
        if (peek() != '"') fail("a key in double quotes");
        builder_.key(read_string(), key_mark);
        skip_space();
        expect(':', "':' after the key");
        skip_space();
        read_value();
        skip_space();
        if (peek() != ',') break;
        ++at_;
        skip_space();
      }
    }
    expect('}', "',' or '}'");
    builder_.end();
  }

  void read_array() {
    builder_.begin_sequence(mark());
    ++at_;
    skip_space();
    if (peek() != ']') {
      while (true) {
        read_value();
        skip_space();
        if (peek() != ',') break;
        ++at_;
        skip_space();
      }
    }
    expect(']', "',' or ']'");
    builder_.end();
  }

  void read_string_value() {
    Node node;
    node.kind = Kind::kString;
    node.line = mark().line;
    node.column = mark().column;
    node.string = read_string();
    builder_.value(std::move(node));
  }

  /// true, false, null or a number.
  void read_word() {
    const Mark start = mark();
    constexpr std::string_view kWordCharacters =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-._";
    const size_t end = std::min(text_.find_first_not_of(kWordCharacters, at_), text_.size());
    const std::string_view word = text_.substr(at_, end - at_);
    PlainScalar scalar = resolve_plain(word, start);
    const bool literal = word == "true" || word == "false" || word == "null";
    const Kind kind = scalar.node.kind;
    const bool number = kind == Kind::kInteger || kind == Kind::kNumber;
    if (kind == Kind::kRefused) {
      builder_.problem(start, describe(scalar.node), std::move(scalar.wanted));
    } else if (!literal && !number) {
      fail("a JSON value");
    }
    at_ = end;
    builder_.value(std::move(scalar.node));
  }

  std::string read_string() {
    std::string out;
    ++at_;
    while (true) {
      if (at_ == text_.size()) fail("'\"' at the end of a string");
      const char c = text_[at_];
      if (c == '"') {
        ++at_;
        return out;
      }
      if (static_cast<unsigned char>(c) < 0x20) fail("an escape such as \\n in a string");
      ++at_;
      if (c == '\\') {
        read_escape(out);
      } else {
        out += c;
      }
    }
  }

  void read_escape(std::string& out) {
    const char c = peek();
    constexpr std::string_view kEscapes = "\"\\/bfnrt";
    constexpr std::string_view kMeanings = "\"\\/\b\f\n\r\t";
    if (const size_t index = kEscapes.find(c); at_ < text_.size() && index != kEscapes.npos) {
      out += kMeanings[index];
      ++at_;
      return;
    }
    if (c != 'u') fail("one of \\\" \\\\ \\/ \\b \\f \\n \\r \\t \\u");
    ++at_;
    uint32_t code = read_hex4();
    if (code >= 0xD800 && code < 0xDC00) {
      if (text_.substr(at_, 2) != "\\u") fail("the second half of a surrogate pair");
      at_ += 2;
      const uint32_t low = read_hex4();
      if (low < 0xDC00 || low > 0xDFFF) fail("the second half of a surrogate pair");
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    } else if (code >= 0xDC00 && code <= 0xDFFF) {
      fail("the first half of a surrogate pair before its second");
    }
    if (code == 0) fail("text without the NUL character");
    append_utf8(out, code);
  }

  uint32_t read_hex4() {
    uint32_t code = 0;
    for (int i = 0; i < 4; ++i, ++at_) {
      constexpr std::string_view kDigits = "0123456789abcdef";
      char c = peek();
      if (c >= 'A' && c <= 'F') c = static_cast<char>(c - 'A' + 'a');
      const size_t digit = kDigits.find(c);
      if (at_ == text_.size() || digit == kDigits.npos) fail("four hexadecimal digits after \\u");
      code = code * 16 + static_cast<uint32_t>(digit);
    }
    return code;
  }

  TreeBuilder builder_;
  std::string_view text_;
  size_t at_ = 0;
  int line_ = 1;
  size_t line_start_ = 0;
};

}  // namespace

Document parse_json(std::string_view text, const Limits& limits) {
  if (auto problem = check_bytes(text, limits)) return {Node{}, {std::move(*problem)}, false};
  Reader reader(text, limits);
  try {
    reader.read_document();
    return reader.builder().take();
  } catch (const StopReading&) {
    return reader.builder().take_incomplete();
  }
}

}  // namespace trainyard::text

#include "common/text/json_writer.h"

#include <array>
#include <charconv>
#include <cmath>

#include "common/base/check.h"
#include "common/log/misleading.h"
#include "common/text/utf8.h"

namespace trainyard::text {
namespace {

constexpr char kReplacement[] = "\xEF\xBF\xBD";  // U+FFFD

void append_code(std::string& out, unsigned code) {
  constexpr char kHex[] = "0123456789abcdef";
  out += "\\u";
  for (const unsigned shift : {12U, 8U, 4U, 0U})
    out += kHex[code >> shift & 15U];
}

/// What a terminal would obey, should somebody look at the JSON there.
void append_misleading(std::string& out, std::string_view character) {
  unsigned code =
      static_cast<unsigned char>(character[0]) & (character.size() == 2 ? 0x1fU : 0x0fU);
  for (const char byte : character.substr(1))
    code = code << 6U | (static_cast<unsigned char>(byte) & 0x3fU);
  append_code(out, code);
}

void append_escaped(std::string& out, unsigned char byte) {
  switch (byte) {
    case '"':
      out += "\\\"";
      return;
    case '\\':
      out += "\\\\";
      return;
    case '\n':
      out += "\\n";
      return;
    case '\r':
      out += "\\r";
      return;
    case '\t':
      out += "\\t";
      return;
    default:
      break;
  }
  if (byte >= 0x20 && byte != 0x7F) {
    out += static_cast<char>(byte);
    return;
  }
  append_code(out, byte);
}

}  // namespace

std::string quote_json(std::string_view value) {
  std::string out = "\"";
  for (size_t at = 0; at < value.size();) {
    const int length = utf8_length_at(value, at);
    if (length == 0) {
      out += kReplacement;
      ++at;
    } else if (length == 1) {
      append_escaped(out, static_cast<unsigned char>(value[at]));
      ++at;
    } else if (const size_t misleading = misleading_length(value, at); misleading > 0) {
      append_misleading(out, value.substr(at, misleading));
      at += misleading;
    } else {
      out.append(value, at, static_cast<size_t>(length));
      at += static_cast<size_t>(length);
    }
  }
  return out + '"';
}

std::string shortest(double value) {
  TRAINYARD_CHECK(std::isfinite(value));
  if (value == 0 && std::signbit(value)) return "-0.0";  // "-0" would come back as an integer
  std::array<char, 32> buffer;
  char* const begin = buffer.data();
  char* const end = begin + buffer.size();
  // Digits alone would come back as an integer, which beyond int64 no reader of ours takes.
  const bool needs_exponent = std::abs(value) >= 0x1p63;
  const auto result = needs_exponent
                          ? std::to_chars(begin, end, value, std::chars_format::scientific)
                          : std::to_chars(begin, end, value);
  return {begin, result.ptr};
}

void JsonWriter::key(std::string_view name) {
  before_value();
  text_ += quote_json(name);
  text_ += indent_ > 0 ? ": " : ":";
  after_key_ = true;
}

void JsonWriter::integer(int64_t value) { literal(std::to_string(value)); }

void JsonWriter::number(const std::optional<double>& value) {
  literal(value && std::isfinite(*value) ? shortest(*value) : "null");
}

void JsonWriter::string(std::string_view value) { literal(quote_json(value)); }

void JsonWriter::open(char bracket) {
  before_value();
  text_ += bracket;
  has_items_.push_back(false);
}

void JsonWriter::close(char bracket) {
  TRAINYARD_CHECK(!has_items_.empty() && !after_key_);
  const bool had_items = has_items_.back();
  has_items_.pop_back();
  if (had_items) new_line();
  text_ += bracket;
}

void JsonWriter::literal(std::string_view token) {
  before_value();
  text_ += token;
}

void JsonWriter::before_value() {
  if (after_key_) {
    after_key_ = false;
    return;
  }
  if (has_items_.empty()) return;
  if (has_items_.back()) text_ += ',';
  has_items_.back() = true;
  new_line();
}

void JsonWriter::new_line() {
  if (indent_ == 0) return;
  text_ += '\n';
  text_.append(has_items_.size() * static_cast<size_t>(indent_), ' ');
}

}  // namespace trainyard::text

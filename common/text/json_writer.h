#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trainyard::text {

/// Writes JSON text piece by piece. Strings that are not UTF-8 get U+FFFD in the wrong places, so
/// the result is always valid. Doubles are the shortest text that reads back to the same bits.
/// Not thread-safe.
class JsonWriter {
 public:
  /// With `indent` > 0 every member stands on its own line.
  explicit JsonWriter(int indent = 0) : indent_(indent) {}

  void begin_object() { open('{'); }
  void end_object() { close('}'); }
  void begin_array() { open('['); }
  void end_array() { close(']'); }
  /// The next value's name; only between begin_object and end_object.
  void key(std::string_view name);
  void null() { literal("null"); }
  void boolean(bool value) { literal(value ? "true" : "false"); }
  void integer(int64_t value);
  /// JSON has no number that is not finite: null, as for one that is not known.
  void number(const std::optional<double>& value);
  void string(std::string_view value);
  /// A value that is JSON already.
  void raw(std::string_view json) { literal(json); }

  /// The text so far; complete when every begin has its end.
  std::string take() { return std::move(text_); }

 private:
  void open(char bracket);
  void close(char bracket);
  void literal(std::string_view token);
  void before_value();
  void new_line();

  std::string text_;
  std::vector<bool> has_items_;  ///< one entry an open bracket
  bool after_key_ = false;
  int indent_ = 0;
};

/// `value` as a JSON string with its quotes.
std::string quote_json(std::string_view value);

/// The shortest decimal text that reads back to the same finite double.
std::string shortest(double value);

}  // namespace trainyard::text

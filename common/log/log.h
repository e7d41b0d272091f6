#pragma once

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <variant>

#include "common/base/error.h"

/// Structured logging: a constant message and keys with values. One Logger is made in main and
/// passed to whoever logs; there is no global one.
namespace trainyard {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

enum class LogFormat {
  kText,  ///< for people: `12:04:31 INFO  rank exited rank=1 exit_code=137`
  kJson,  ///< for machines: one object a line with time, level, message and the keys
};

/// A key and its value; views, read before log() returns.
struct LogField {
  using Value = std::variant<std::string_view, int64_t, double, bool>;

  LogField(std::string_view name, std::string_view text) : key(name), value(text) {}
  LogField(std::string_view name, const char* text) : key(name), value(std::string_view(text)) {}
  LogField(std::string_view name, const std::string& text)
      : key(name), value(std::string_view(text)) {}
  LogField(std::string_view name, bool flag) : key(name), value(flag) {}
  LogField(std::string_view name, double number) : key(name), value(number) {}
  template <std::integral T>
  LogField(std::string_view name, T number) : key(name), value(static_cast<int64_t>(number)) {}

  std::string_view key;
  Value value;
};

/// Writes lines to one place. Thread-safe. Values are escaped, so that nothing logged can start a
/// line of its own or move a terminal's cursor. Write errors are dropped: logging never fails.
class Logger {
 public:
  /// Writes to standard error: text in colour when it is a terminal, else JSON, unless `format`
  /// says otherwise.
  static std::unique_ptr<Logger> to_stderr(LogLevel minimum);
  static std::unique_ptr<Logger> to_stderr(LogLevel minimum, LogFormat format);
  /// Appends to a file, flushed after each line. Errors: kIo.
  static Result<std::unique_ptr<Logger>> to_file(const std::filesystem::path& path,
                                                 LogLevel minimum, LogFormat format);
  /// Drops everything.
  static std::unique_ptr<Logger> to_nowhere();
  ~Logger();

  void log(LogLevel level, std::string_view message, std::initializer_list<LogField> fields = {});
  void debug(std::string_view message, std::initializer_list<LogField> fields = {}) {
    log(LogLevel::kDebug, message, fields);
  }
  void info(std::string_view message, std::initializer_list<LogField> fields = {}) {
    log(LogLevel::kInfo, message, fields);
  }
  void warning(std::string_view message, std::initializer_list<LogField> fields = {}) {
    log(LogLevel::kWarning, message, fields);
  }
  void error(std::string_view message, std::initializer_list<LogField> fields = {}) {
    log(LogLevel::kError, message, fields);
  }

 private:
  struct Impl;
  explicit Logger(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace trainyard

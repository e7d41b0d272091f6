#include "common/log/log.h"

#include <chrono>
#include <cmath>
#include <unistd.h>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/null_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include "common/log/text.h"

namespace trainyard {
namespace {

spdlog::level::level_enum spdlog_level(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

std::string_view level_name(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarning:
      return "warning";
    case LogLevel::kError:
      return "error";
  }
  return "?";
}

std::string number_text(double value) {
  // JSON has no NaN and no infinity.
  return std::isfinite(value) ? fmt::format("{}", value) : fmt::format("\"{}\"", value);
}

/// Needs no quotes to be read back as one value by a person or a script.
bool is_plain(std::string_view text) {
  if (text.empty()) return false;
  for (const char c : text) {
    if (c <= ' ' || c == '"' || c == '=' || c == '\\' || c == 0x7f) return false;
  }
  return true;
}

struct TextValue {
  std::string operator()(std::string_view text) const {
    const std::string escaped = escape_text(text);
    return is_plain(text) && escaped == text ? escaped : "\"" + escaped + "\"";
  }
  std::string operator()(int64_t number) const { return fmt::format("{}", number); }
  std::string operator()(double number) const { return fmt::format("{:.6g}", number); }
  std::string operator()(bool flag) const { return flag ? "true" : "false"; }
};

struct JsonValue {
  std::string operator()(std::string_view text) const { return "\"" + escape_text(text) + "\""; }
  std::string operator()(int64_t number) const { return fmt::format("{}", number); }
  std::string operator()(double number) const { return number_text(number); }
  std::string operator()(bool flag) const { return flag ? "true" : "false"; }
};

std::string text_line(std::string_view message, std::initializer_list<LogField> fields) {
  std::string line = escape_text(message);
  for (const LogField& field : fields) {
    line += fmt::format(" {}={}", escape_text(field.key), std::visit(TextValue{}, field.value));
  }
  return line;
}

std::string json_line(LogLevel level, std::string_view message,
                      std::initializer_list<LogField> fields) {
  const auto now = std::chrono::system_clock::now();
  const auto micros =
      std::chrono::duration_cast<std::chrono::microseconds>(now.time_since_epoch()).count() %
      1'000'000;
  std::string line = fmt::format(R"({{"time":"{:%FT%T}.{:06}Z","level":"{}","message":"{}")",
                                 fmt::gmtime(std::chrono::system_clock::to_time_t(now)), micros,
                                 level_name(level), escape_text(message));
  for (const LogField& field : fields) {
    line +=
        fmt::format(R"(,"{}":{})", escape_text(field.key), std::visit(JsonValue{}, field.value));
  }
  return line + "}";
}

}  // namespace

struct Logger::Impl {
  spdlog::logger logger;
  LogFormat format;

  Impl(spdlog::sink_ptr sink, LogLevel minimum, LogFormat chosen)
      : logger("trainyard", std::move(sink)), format(chosen) {
    // JSON lines are complete; text lines get spdlog's clock and coloured level.
    logger.set_pattern(format == LogFormat::kJson ? "%v" : "%H:%M:%S %^%-7l%$ %v");
    logger.set_level(spdlog_level(minimum));
    logger.flush_on(spdlog::level::trace);
    logger.set_error_handler([](const std::string&) {});
  }
};

Logger::Logger(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Logger::~Logger() = default;

std::unique_ptr<Logger> Logger::to_stderr(LogLevel minimum) {
  return to_stderr(minimum, ::isatty(STDERR_FILENO) == 1 ? LogFormat::kText : LogFormat::kJson);
}

std::unique_ptr<Logger> Logger::to_stderr(LogLevel minimum, LogFormat format) {
  auto sink = std::make_shared<spdlog::sinks::stderr_color_sink_mt>();
  return std::unique_ptr<Logger>(
      new Logger(std::make_unique<Impl>(std::move(sink), minimum, format)));
}

Result<std::unique_ptr<Logger>> Logger::to_file(const std::filesystem::path& path, LogLevel minimum,
                                                LogFormat format) {
  try {
    auto sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path.string());
    return std::unique_ptr<Logger>(
        new Logger(std::make_unique<Impl>(std::move(sink), minimum, format)));
  } catch (const spdlog::spdlog_ex& error) {
    return Error{ErrorCode::kIo, "log file " + path.string() + ": " + error.what()};
  }
}

std::unique_ptr<Logger> Logger::to_nowhere() {
  return std::unique_ptr<Logger>(new Logger(std::make_unique<Impl>(
      std::make_shared<spdlog::sinks::null_sink_mt>(), LogLevel::kError, LogFormat::kJson)));
}

void Logger::log(LogLevel level, std::string_view message, std::initializer_list<LogField> fields) {
  if (!impl_->logger.should_log(spdlog_level(level))) return;
  impl_->logger.log(
      spdlog_level(level),
      spdlog::string_view_t(impl_->format == LogFormat::kJson ? json_line(level, message, fields)
                                                              : text_line(message, fields)));
}

}  // namespace trainyard

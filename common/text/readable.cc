#include "common/text/readable.h"

#include <cstring>
#include <optional>

#include <nlohmann/json.hpp>

namespace trainyard {
namespace {

using nlohmann::json;

std::string value_text(const json& value) {
  return value.is_string() ? value.get<std::string>()
                           : value.dump(-1, ' ', false, json::error_handler_t::replace);
}

/// nullopt: a line of ours that tells of nothing wrong.
std::optional<std::string> readable_line(const std::string& line) {
  if (!line.starts_with('{')) return line;
  const json object = json::parse(line, nullptr, false);
  const bool ours = object.is_object() && object.contains("level") && object.contains("message");
  if (!ours) return line;
  const std::string level = value_text(object["level"]);
  if (level != "warning" && level != "error") return std::nullopt;
  std::string text = value_text(object["message"]);
  if (object.contains("error")) text += ": " + value_text(object["error"]);
  std::string rest;
  for (const auto& [key, value] : object.items()) {
    if (key == "time" || key == "level" || key == "message" || key == "error") continue;
    rest += (rest.empty() ? "" : ", ") + key + " " + value_text(value);
  }
  return rest.empty() ? text : text + " (" + rest + ")";
}

}  // namespace

std::vector<std::string> readable_lines(const std::vector<std::string>& lines) {
  std::vector<std::string> readable;
  for (const std::string& line : lines) {
    if (auto text = readable_line(line)) readable.push_back(*std::move(text));
  }
  return readable;
}

std::string readable_text(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  std::string joined;
  for (const std::string& line : readable_lines(lines))
    joined += (joined.empty() ? "" : "\n") + line;
  return joined;
}

std::string signal_text(int signal_number) {
  std::string text = "signal " + std::to_string(signal_number);
  const char* name = ::sigabbrev_np(signal_number);
  return name == nullptr ? text : text + " (SIG" + name + ")";
}

}  // namespace trainyard

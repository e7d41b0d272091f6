#pragma once

#include <string>
#include <string_view>
#include <vector>

/// What a process printed, for people who ask why it ended. Pure.
namespace trainyard {

/// The lines that explain an end: our own log lines (JSON) of level warning and error as
/// "message: error, key value", other programs' lines as they are; our lines of lower levels, which
/// tell of nothing wrong, are left out. Order is kept.
std::vector<std::string> readable_lines(const std::vector<std::string>& lines);

/// The same of a text, its lines joined again.
std::string readable_text(std::string_view text);

/// "signal 9 (SIGKILL)".
std::string signal_text(int signal_number);

}  // namespace trainyard

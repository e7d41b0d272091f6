#pragma once

#include <optional>
#include <string_view>

namespace trainyard {

/// Who a program is that others start.
struct ProgramAbout {
  std::string_view name;
  std::string_view version;
  std::string_view help;  ///< ends with a newline
};

/// Answers a person who asks such a program what it is: `--help` and `-h` print its help,
/// `--version` prints its name and version. The exit code then (74: standard output takes nothing);
/// nullopt: nobody asked.
std::optional<int> answer_about_itself(int argc, char** argv, const ProgramAbout& about);

}  // namespace trainyard

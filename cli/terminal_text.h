#pragma once

#include <string>
#include <string_view>

namespace trainyard::cli {

/// Text that comes in pieces, as printable() shows it on a terminal. A piece may end within a
/// character, which is then shown with the next one.
class TerminalText {
 public:
  /// What can be shown now.
  std::string pass(std::string_view piece);
  /// What is left: of a character that has no end.
  std::string end();

 private:
  std::string held_;
};

}  // namespace trainyard::cli

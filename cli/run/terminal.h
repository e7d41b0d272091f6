#pragma once

#include <unistd.h>

/// What views that draw on a terminal share.
namespace trainyard::cli::terminal {

// Control sequences of ECMA-48, and of xterm for the second screen, that every terminal of today
// knows.
inline constexpr char kEnterScreen[] = "\x1b[?1049h";
inline constexpr char kLeaveScreen[] = "\x1b[?1049l";
inline constexpr char kHome[] = "\x1b[H";
inline constexpr char kClearLine[] = "\x1b[K";
inline constexpr char kClearBelow[] = "\x1b[J";
inline constexpr char kHideCursor[] = "\x1b[?25l";
inline constexpr char kShowCursor[] = "\x1b[?25h";
inline constexpr char kBold[] = "\x1b[1m";
inline constexpr char kNormal[] = "\x1b[0m";

struct Size {
  int columns = 80;
  int rows = 24;
};

/// Of the terminal that the descriptor is; what is not known is as above.
Size size(int fd = STDOUT_FILENO);

}  // namespace trainyard::cli::terminal

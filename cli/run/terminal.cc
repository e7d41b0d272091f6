#include "cli/run/terminal.h"

#include <sys/ioctl.h>

namespace trainyard::cli::terminal {

Size size(int fd) {
  Size size;
  winsize told{};
  if (::ioctl(fd, TIOCGWINSZ, &told) != 0) return size;
  if (told.ws_col > 0) size.columns = told.ws_col;
  if (told.ws_row > 0) size.rows = told.ws_row;
  return size;
}

}  // namespace trainyard::cli::terminal

#include "cli/top/screen.h"

#include <array>
#include <ostream>
#include <poll.h>
#include <unistd.h>

#include "cli/run/terminal.h"

namespace trainyard::cli {

Screen::Screen(std::ostream& out) : out_(out) {
  if (::tcgetattr(STDIN_FILENO, &before_) == 0) {
    termios raw = before_;
    raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    keys_ = ::tcsetattr(STDIN_FILENO, TCSANOW, &raw) == 0;
  }
  out_ << terminal::kEnterScreen << terminal::kHideCursor << std::flush;
}

Screen::~Screen() {
  out_ << terminal::kShowCursor << terminal::kLeaveScreen << std::flush;
  if (keys_) ::tcsetattr(STDIN_FILENO, TCSANOW, &before_);
}

int Screen::columns() const { return terminal::size().columns; }
int Screen::rows() const { return terminal::size().rows; }

void Screen::draw(const std::vector<std::string>& lines) {
  std::string text = terminal::kHome;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) text += "\r\n";
    text += i == 0 ? terminal::kBold + lines[i] + terminal::kNormal : lines[i];
    text += terminal::kClearLine;
  }
  out_ << text << terminal::kClearBelow << std::flush;
}

Screen::Key Screen::wait(std::chrono::milliseconds timeout, int wake_fd) {
  std::array<pollfd, 2> fds = {pollfd{keys_ ? STDIN_FILENO : -1, POLLIN, 0},
                               pollfd{wake_fd, POLLIN, 0}};
  if (::poll(fds.data(), fds.size(), static_cast<int>(timeout.count())) <= 0) return Key::kNone;
  if (fds[0].revents == 0) return Key::kNone;
  std::array<char, 64> typed{};
  const ssize_t count = ::read(STDIN_FILENO, typed.data(), typed.size());
  for (ssize_t i = 0; i < count; ++i) {
    const char key = typed[static_cast<size_t>(i)];
    if (key == 'q' || key == 'Q') return Key::kQuit;
  }
  if (count <= 0) keys_ = false;  // the terminal is gone; signals still end it
  return Key::kNone;
}

}  // namespace trainyard::cli

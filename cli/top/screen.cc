#include "cli/top/screen.h"

#include <array>
#include <ostream>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

namespace trainyard::cli {
namespace {

constexpr int kFallbackColumns = 80;
constexpr int kFallbackRows = 24;

// Control sequences of ECMA-48 and xterm.
constexpr char kEnter[] = "\x1b[?1049h\x1b[?25l";
constexpr char kLeave[] = "\x1b[?25h\x1b[?1049l";
constexpr char kHome[] = "\x1b[H";
constexpr char kClearLine[] = "\x1b[K";
constexpr char kClearBelow[] = "\x1b[J";
constexpr char kBold[] = "\x1b[1m";
constexpr char kNormal[] = "\x1b[0m";

winsize size_now() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) size = {};
  return size;
}

}  // namespace

Screen::Screen(std::ostream& out) : out_(out) {
  if (::tcgetattr(STDIN_FILENO, &before_) == 0) {
    termios raw = before_;
    raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    keys_ = ::tcsetattr(STDIN_FILENO, TCSANOW, &raw) == 0;
  }
  out_ << kEnter << std::flush;
}

Screen::~Screen() {
  out_ << kLeave << std::flush;
  if (keys_) ::tcsetattr(STDIN_FILENO, TCSANOW, &before_);
}

int Screen::columns() const {
  const int columns = size_now().ws_col;
  return columns > 0 ? columns : kFallbackColumns;
}

int Screen::rows() const {
  const int rows = size_now().ws_row;
  return rows > 0 ? rows : kFallbackRows;
}

void Screen::draw(const std::vector<std::string>& lines) {
  std::string text = kHome;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) text += "\r\n";
    text += i == 0 ? kBold + lines[i] + kNormal : lines[i];
    text += kClearLine;
  }
  out_ << text << kClearBelow << std::flush;
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

#pragma once

#include <chrono>
#include <iosfwd>
#include <string>
#include <termios.h>
#include <vector>

namespace trainyard::cli {

/// The terminal as `trainyard top` uses it: the alternate screen, no cursor, keys without Enter and
/// without echo. Everything is put back on destruction. Signals end it through their caller.
class Screen {
 public:
  enum class Key { kNone, kQuit };

  /// `out` must be the terminal that standard output is.
  explicit Screen(std::ostream& out);
  ~Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  int columns() const;
  int rows() const;
  /// Writes over what was there; the first line is bold.
  void draw(const std::vector<std::string>& lines);
  /// Waits up to `timeout` for a key or for `wake_fd` to become readable.
  Key wait(std::chrono::milliseconds timeout, int wake_fd);

 private:
  std::ostream& out_;
  termios before_{};
  bool keys_ = false;  ///< standard input is a terminal whose settings were changed
};

}  // namespace trainyard::cli

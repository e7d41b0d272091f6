#pragma once

#include <chrono>
#include <iosfwd>

#include "common/base/clock.h"
#include "worker/data/prepare.h"

namespace trainyard::cli {

/// Shows how far a preparation is: one line in place on a terminal, a line every ten seconds
/// otherwise.
class DataProgress {
 public:
  DataProgress(std::ostream& out, bool on_terminal, const Clock& clock)
      : out_(out), on_terminal_(on_terminal), clock_(clock), start_(clock.mono()), shown_(start_) {}

  /// Prints if it is time to.
  void show(const data::PrepareProgress& progress);
  /// Takes the line in place away.
  void clear();

 private:
  std::ostream& out_;
  bool on_terminal_;
  const Clock& clock_;
  MonoTime start_;
  MonoTime shown_;
  bool line_open_ = false;
};

}  // namespace trainyard::cli

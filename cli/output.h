#pragma once

#include <iosfwd>
#include <string>

namespace trainyard::cli {

/// A command's results could not be written: sysexits.h's EX_IOERR.
inline constexpr int kExitLostOutput = 74;

/// Whether whoever reads standard output has gone away (`| head -1`), which is their choice and no
/// failure.
bool reader_has_left();

/// Help: `text` with lines of at most `columns`. Lines of a paragraph are one, however they were
/// broken; what is indented keeps its lines, longer ones go on below where their last column began,
/// and examples of commands as a shell takes them.
std::string wrapped(const std::string& text, size_t columns);

/// Flushes `out` and gives the code to exit with: `exit_code`, but where output was lost (a full
/// disk) says so on `err` and turns 0 into kExitLostOutput.
int settle_output(int exit_code, std::ostream& out, std::ostream& err);

}  // namespace trainyard::cli

#pragma once

namespace trainyard {

/// How a program says its last words on standard error.
enum class LastWords {
  kText,  ///< "trainyard: <words>"
  kJson,  ///< a line as common/log writes them
};

/// From now on a thread that cannot be started, or memory that cannot be had, ends the process with
/// one line that names the limits which are set, and with an exit code of the worker contract: 64
/// where one of memory is set (another attempt meets it again), else 75: in a limit of processes
/// those of others count, too. Without it std::terminate
/// would say neither. Whatever else is thrown through main() or a thread aborts, as before.
/// `program`: a literal. Call once, first in main().
void say_last_words(const char* program, LastWords words);

}  // namespace trainyard

#include "common/io/last_words.h"

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <system_error>
#include <unistd.h>

#include "common/io/byte_limits.h"
#include "common/worker_contract.h"

namespace trainyard {
namespace {

// Read where nothing can be passed in: set once, before any thread.
const char* the_program = "";
LastWords the_words = LastWords::kText;

/// "; ulimit -d is 200000 KiB" of each limit that is set. Takes no memory. Whether one of memory
/// is.
bool limits_text(char* text, size_t size) {
  bool set = false;
  size_t used = 0;
  text[0] = '\0';
  for (const ByteLimit& limit : {kAddressSpaceLimit, kDataLimit}) {
    rlimit here{};
    if (::getrlimit(limit.resource, &here) != 0 || here.rlim_cur == RLIM_INFINITY) continue;
    set = true;
    const int n = std::snprintf(text + used, size - used, "; ulimit %s is %llu KiB", limit.option,
                                static_cast<unsigned long long>(here.rlim_cur / 1024));
    used += n > 0 ? static_cast<size_t>(n) : 0;
  }
  rlimit here{};
  if (::getrlimit(RLIMIT_NPROC, &here) == 0 && here.rlim_cur != RLIM_INFINITY) {
    (void)std::snprintf(text + used, size - used, "; ulimit -u is %llu",
                        static_cast<unsigned long long>(here.rlim_cur));
  }
  return set;
}

[[noreturn]] void end(const char* what) {
  char limits[256];
  const bool limited = limits_text(limits, sizeof limits);
  const int code = limited ? contract::kExitBadConfig : contract::kExitRetry;
  char line[640];
  const int n =
      std::snprintf(line, sizeof line,
                    the_words == LastWords::kJson
                        ? "{\"level\":\"error\",\"message\":\"%s: %s%s; raise the limit, use a "
                          "smaller job, or stop other processes\"}\n"
                        : "%s: %s%s; raise the limit, use a smaller job, or stop other processes\n",
                    the_program, what, limits);
  if (n > 0) (void)!::write(STDERR_FILENO, line, static_cast<size_t>(n));
  ::_exit(code);
}

[[noreturn]] void no_memory() { end("memory cannot be allocated"); }

[[noreturn]] void terminate() {
  if (const std::exception_ptr thrown = std::current_exception()) {
    try {
      std::rethrow_exception(thrown);
    } catch (const std::bad_alloc&) {
      no_memory();
    } catch (const std::system_error& error) {
      const bool limit = error.code() == std::errc::resource_unavailable_try_again ||
                         error.code() == std::errc::not_enough_memory;
      if (limit) end("a thread cannot be started");
      std::fprintf(stderr, "%s: %s\n", the_program, error.what());
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s: %s\n", the_program, error.what());
    } catch (...) {
      std::fprintf(stderr, "%s: an exception of unknown type\n", the_program);
    }
  }
  std::abort();
}

}  // namespace

void say_last_words(const char* program, LastWords words) {
  the_program = program;
  the_words = words;
  std::set_new_handler(no_memory);
  std::set_terminate(terminate);
}

}  // namespace trainyard

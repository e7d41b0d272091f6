#pragma once

#include <cstdio>
#include <cstdlib>

/// Ends the process with file and line when `condition` is false: for bugs only, never for input.
#define TRAINYARD_CHECK(condition)                                                       \
  do {                                                                                   \
    if (!(condition)) [[unlikely]] {                                                     \
      std::fprintf(stderr, "%s:%d: check failed: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                      \
    }                                                                                    \
  } while (false)

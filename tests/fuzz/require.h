#pragma once

#include <cstdio>
#include <cstdlib>

/// Ends the fuzz target with the property that does not hold; libFuzzer then keeps the input.
#define TRAINYARD_REQUIRE(condition, why)                                           \
  do {                                                                              \
    if (!(condition)) {                                                             \
      std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, why); \
      std::abort();                                                                 \
    }                                                                               \
  } while (false)

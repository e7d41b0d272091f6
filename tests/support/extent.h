#pragma once

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <string>
#include <string_view>

/// How much of a test with many similar cases runs.
namespace trainyard::testing_support {

/// Whether every case runs: `make test-long` sets TRAINYARD_LONG_TESTS=1.
inline bool runs_everything() {
  const char* value = std::getenv("TRAINYARD_LONG_TESTS");  // NOLINT(concurrency-mt-unsafe)
  return value != nullptr && std::string_view(value) == "1";
}

#if defined(__has_feature)  // clang
#define TRAINYARD_HAS_FEATURE(feature) __has_feature(feature)
#else
#define TRAINYARD_HAS_FEATURE(feature) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || \
    TRAINYARD_HAS_FEATURE(address_sanitizer) || TRAINYARD_HAS_FEATURE(thread_sanitizer)
/// A sanitizer makes code up to twenty times slower.
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif
#undef TRAINYARD_HAS_FEATURE

/// The number TRAINYARD_TEST_SEED, by which tests draw their cases: 0 by default and in CI, others
/// in `make explore` and `make test-long`. Printed once per process where it is set.
inline uint64_t test_seed() {
  static const uint64_t seed = [] {
    const char* given = std::getenv("TRAINYARD_TEST_SEED");  // NOLINT(concurrency-mt-unsafe)
    if (given == nullptr || *given == '\0') return uint64_t{0};
    std::cout << "drawn by TRAINYARD_TEST_SEED=" << given << std::endl;
    return static_cast<uint64_t>(std::stoull(given));
  }();
  return seed;
}

/// Whether case `index` of the series `name` runs: one in `share` unless everything runs. The
/// seed and the name decide which.
inline bool in_sample(std::string_view name, int64_t index, int64_t share) {
  if (runs_everything()) return true;
  const size_t drawn = std::hash<std::string>()(std::string(name) + std::to_string(test_seed()));
  return index % share == static_cast<int64_t>(drawn % static_cast<size_t>(share));
}

}  // namespace trainyard::testing_support

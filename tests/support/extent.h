#pragma once

#include <cstdint>
#include <cstdlib>
#include <functional>
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

/// Whether case `index` of the series `name` runs: one in `share` unless everything runs. The
/// number TRAINYARD_TEST_SEED (default 0) and the name decide which; the same seed draws the same
/// cases.
inline bool in_sample(std::string_view name, int64_t index, int64_t share) {
  if (runs_everything()) return true;
  const char* seed = std::getenv("TRAINYARD_TEST_SEED");  // NOLINT(concurrency-mt-unsafe)
  const size_t drawn = std::hash<std::string>()(std::string(name) + (seed == nullptr ? "0" : seed));
  return index % share == static_cast<int64_t>(drawn % static_cast<size_t>(share));
}

}  // namespace trainyard::testing_support

#pragma once

#include <string>

#include <gtest/gtest.h>

/// Comparisons whose failure is never a false alarm.
namespace trainyard::testing_support {

/// Stands in the message of such a failure: tools/run_ctest does not repeat a program that wrote
/// it.
inline constexpr char kExact[] = "exact comparison failed";

/// Whether a run ended in the wanted state. A run that reports no hash did not end, which a busy
/// machine may explain; another hash has no excuse.
inline ::testing::AssertionResult same_hash(const std::string& found, const std::string& wanted) {
  if (found == wanted && !wanted.empty()) return ::testing::AssertionSuccess();
  const bool both = !found.empty() && !wanted.empty();
  return ::testing::AssertionFailure() << (both ? kExact : "no hash") << ": state hash: found \""
                                       << found << "\", wanted \"" << wanted << "\"";
}

}  // namespace trainyard::testing_support

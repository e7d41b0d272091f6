#include "common/api/rules.h"

namespace trainyard::api {

std::string bounds_in_words(const Field& field) {
  std::string words;
  const auto add = [&](const std::optional<double>& bound, const char* word) {
    if (!bound) return;
    if (!words.empty()) words += " and ";
    // Bounds are round numbers: written out, not as 1e+12.
    const bool whole = *bound == std::floor(*bound);
    words += word + (whole ? std::to_string(static_cast<int64_t>(*bound)) : text::shortest(*bound));
  };
  add(field.minimum, "at least ");
  add(field.above, "above ");
  add(field.maximum, "at most ");
  add(field.below, "below ");
  if (!words.empty() && !field.zero_word.empty()) words += ", or " + std::string(field.zero_word);
  return words;
}

void BoundsChecker::check_number(const Field& field, const std::string& path, double value,
                                 std::string found) {
  const bool inside = std::isfinite(value) && (!field.minimum || value >= *field.minimum) &&
                      (!field.maximum || value <= *field.maximum) &&
                      (!field.above || value > *field.above) &&
                      (!field.below || value < *field.below);
  if (inside || faults_.faulted(path)) return;
  const std::string words = bounds_in_words(field);
  faults_.add(path, std::move(found), "a number " + (words.empty() ? "that is finite" : words));
}

void BoundsChecker::check_string(const Field& field, const std::string& path,
                                 const std::string& value) {
  if (faults_.faulted(path)) return;
  if (static_cast<int64_t>(value.size()) > field.max_length) {
    faults_.add(path, std::to_string(value.size()) + " bytes",
                "at most " + std::to_string(field.max_length) + " bytes");
  } else if (value.empty() && field.need == Need::kRequired) {
    faults_.add(path, "\"\"", "a value: " + std::string(field.description));
  }
}

void BoundsChecker::check_count(const Field& field, const std::string& path, size_t count) {
  if (faults_.faulted(path)) return;
  if (count > static_cast<size_t>(field.max_items)) {
    faults_.add(path, std::to_string(count) + " items",
                "at most " + std::to_string(field.max_items) + " items");
  } else if (count == 0 && field.need == Need::kRequired) {
    faults_.add(path, "an empty list", "at least 1 item");
  }
}

}  // namespace trainyard::api

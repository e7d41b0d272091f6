#include "common/api/rules.h"

namespace trainyard::api {

std::string bounds_in_words(const Field& field) {
  std::string words;
  const auto in_digits = [](double bound) {  // bounds are round: written out, not as 1e+12
    const bool whole = bound == std::floor(bound);
    return whole ? std::to_string(static_cast<int64_t>(bound)) : text::shortest(bound);
  };
  const auto add = [&](const char* word, const std::optional<double>& bound) {
    if (!bound) return;
    if (!words.empty()) words += " and ";
    words += word + in_digits(*bound);
  };
  if (field.minimum && field.maximum) {
    words = "from " + in_digits(*field.minimum) + " to " + in_digits(*field.maximum);
  } else {
    add("at least ", field.minimum);
    add("above ", field.above);
    add("at most ", field.maximum);
    add("below ", field.below);
  }
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
    faults_.add(path, "\"\"", value_in_words(field));
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

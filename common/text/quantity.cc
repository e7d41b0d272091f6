#include "common/text/quantity.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>

namespace trainyard::text {
namespace {

constexpr double kThousand = 1000;

/// Suffixes of quantities, the longer ones first.
constexpr std::array<std::pair<std::string_view, double>, 15> kSuffixes = {{
    {"Ki", 0x1p10},
    {"Mi", 0x1p20},
    {"Gi", 0x1p30},
    {"Ti", 0x1p40},
    {"Pi", 0x1p50},
    {"Ei", 0x1p60},
    {"n", 1e-9},
    {"u", 1e-6},
    {"m", 1e-3},
    {"k", 1e3},
    {"M", 1e6},
    {"G", 1e9},
    {"T", 1e12},
    {"P", 1e15},
    {"E", 1e18},
}};

}  // namespace

std::optional<int64_t> parse_quantity(std::string_view text) {
  double unit = 1;
  for (const auto& [suffix, factor] : kSuffixes) {
    if (!text.ends_with(suffix)) continue;
    // "1E3" ends in a digit; "1E" is an exa.
    unit = factor;
    text.remove_suffix(suffix.size());
    break;
  }
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  const double thousandths = std::ceil(number * unit * kThousand);
  if (!std::isfinite(thousandths) || thousandths < 0) return std::nullopt;
  return static_cast<int64_t>(std::min(thousandths, static_cast<double>(kMostThousandths)));
}

std::string size_text(int64_t bytes) {
  constexpr double kMiB = 1 << 20;
  constexpr double kGiB = 1 << 30;
  const auto amount = static_cast<double>(bytes);
  const bool large = amount >= kGiB;
  std::array<char, 32> text{};
  const auto [end, error] =
      std::to_chars(text.data(), text.data() + text.size(), amount / (large ? kGiB : kMiB),
                    std::chars_format::fixed, large ? 2 : 1);
  return std::string(text.data(), end) + (large ? " GiB" : " MiB");
}

std::string plural(int64_t count, std::string_view noun) {
  std::string text(noun);
  if (count != 1) text += noun.ends_with("ch") ? "es" : "s";
  return text;
}

std::string counted(int64_t count, std::string_view noun) {
  return std::to_string(count) + " " + plural(count, noun);
}

}  // namespace trainyard::text

#include "worker/data/text/unicode.h"

#include <algorithm>
#include <array>
#include <functional>
#include <utility>

#include "worker/data/text/unicode_tables.h"

namespace trainyard::data {
namespace {

// In the order of tools/oracle/make_unicode_tables.py.
constexpr std::array<std::string_view, 29> kNames = {
    "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe",
    "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Co", "Cn"};
constexpr uint32_t kCategoryMask = 0x1F;
constexpr uint32_t kWord = 1U << 5;
constexpr uint32_t kDigit = 1U << 6;

// The code points whose value in the table is `wanted`.
CodePointSet set_where(const std::function<bool(uint32_t value)>& wanted) {
  const auto runs = category_runs();
  std::vector<CodePointRange> ranges;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (!wanted(runs[i] & 0xFF)) continue;
    const char32_t end = i + 1 < runs.size() ? runs[i + 1] >> 8 : kCodePoints;
    ranges.push_back({runs[i] >> 8, end - 1});
  }
  return CodePointSet(std::move(ranges));
}

}  // namespace

CodePointSet::CodePointSet(std::vector<CodePointRange> ranges) {
  std::ranges::sort(ranges, {}, &CodePointRange::first);
  for (const CodePointRange& range : ranges) {
    if (!ranges_.empty() && range.first <= ranges_.back().last + 1) {
      ranges_.back().last = std::max(ranges_.back().last, range.last);
    } else {
      ranges_.push_back(range);
    }
  }
}

bool CodePointSet::contains(char32_t code_point) const {
  const auto after = std::ranges::upper_bound(ranges_, code_point, {}, &CodePointRange::first);
  return after != ranges_.begin() && code_point <= std::prev(after)->last;
}

CodePointSet CodePointSet::complement() const {
  CodePointSet others;
  char32_t next = 0;
  for (const CodePointRange& range : ranges_) {
    if (range.first > next) others.ranges_.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next < kCodePoints) others.ranges_.push_back({next, kCodePoints - 1});
  return others;
}

std::optional<CodePointSet> category_set(std::string_view name) {
  uint32_t wanted = 0;
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (!name.empty() && (kNames[i] == name || kNames[i].substr(0, 1) == name)) wanted |= 1U << i;
  }
  if (wanted == 0) return std::nullopt;
  return set_where([&](uint32_t value) { return (wanted >> (value & kCategoryMask) & 1U) != 0; });
}

const CodePointSet& white_space_set() {
  static const CodePointSet kSet({{'\t', '\r'},
                                  {' ', ' '},
                                  {0x85, 0x85},
                                  {0xA0, 0xA0},
                                  {0x1680, 0x1680},
                                  {0x2000, 0x200A},
                                  {0x2028, 0x2029},
                                  {0x202F, 0x202F},
                                  {0x205F, 0x205F},
                                  {0x3000, 0x3000}});
  return kSet;
}

CodePointSet digits_set() {
  return set_where([](uint32_t value) { return (value & kDigit) != 0; });
}

bool is_word_character(char32_t code_point) {
  const auto runs = category_runs();
  const auto after = std::ranges::upper_bound(runs, static_cast<uint32_t>(code_point), {},
                                              [](uint32_t run) { return run >> 8; });
  return (*std::prev(after) & kWord) != 0;
}

}  // namespace trainyard::data

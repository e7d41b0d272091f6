#include "worker/data/text/nfc.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "worker/data/text/unicode.h"
#include "worker/data/text/unicode_tables.h"
#include "worker/data/text/utf8.h"

namespace trainyard::data {
namespace {

// The Unicode Standard, section 3.12: conjoining jamo.
constexpr char32_t kHangulFirst = 0xAC00;
constexpr char32_t kLeadFirst = 0x1100;
constexpr char32_t kVowelFirst = 0x1161;
constexpr char32_t kTailBefore = 0x11A7;
constexpr char32_t kLeads = 19;
constexpr char32_t kVowels = 21;
constexpr char32_t kTails = 28;
constexpr char32_t kHangul = kLeads * kVowels * kTails;

struct Decomposition {
  char32_t first = 0;
  char32_t second = 0;  // 0: none
};

// The tables in a form to look up.
struct Tables {
  std::vector<uint8_t> combining_class;  // by code point
  std::vector<bool> begins;              // by code point: see begins_nfc()
  std::unordered_map<char32_t, Decomposition> parts;
  std::unordered_map<uint64_t, char32_t> composite;

  static uint64_t pair_of(char32_t first, char32_t second) {
    return static_cast<uint64_t>(first) << 32 | second;
  }

  Tables() : combining_class(kCodePoints), begins(kCodePoints, true) {
    const auto runs = combining_runs();
    for (size_t i = 0; i < runs.size(); ++i) {
      const char32_t end = i + 1 < runs.size() ? runs[i + 1] >> 8 : kCodePoints;
      for (char32_t c = runs[i] >> 8; c < end; ++c) {
        combining_class[c] = static_cast<uint8_t>(runs[i] & 0xFF);
        if (combining_class[c] != 0) begins[c] = false;
      }
    }
    for (const uint64_t row : decompositions()) {
      const auto code_point = static_cast<char32_t>(row >> 42 & 0x1FFFFF);
      const Decomposition two = {static_cast<char32_t>(row >> 21 & 0x1FFFFF),
                                 static_cast<char32_t>(row & 0x1FFFFF)};
      parts.emplace(code_point, two);
      if (row >> 63 != 0) {
        composite.emplace(pair_of(two.first, two.second), code_point);
        begins[two.second] = false;
      } else {
        begins[code_point] = false;
      }
    }
    for (char32_t c = kVowelFirst; c < kVowelFirst + kVowels; ++c)
      begins[c] = false;
    for (char32_t c = kTailBefore + 1; c < kTailBefore + kTails; ++c)
      begins[c] = false;
  }
};

const Tables& tables() {
  static const Tables kTables;
  return kTables;
}

void decompose(char32_t code_point, std::u32string& into) {
  if (code_point >= kHangulFirst && code_point < kHangulFirst + kHangul) {
    const char32_t place = code_point - kHangulFirst;
    into.push_back(kLeadFirst + place / (kVowels * kTails));
    into.push_back(kVowelFirst + place % (kVowels * kTails) / kTails);
    if (place % kTails != 0) into.push_back(kTailBefore + place % kTails);
    return;
  }
  const auto found = tables().parts.find(code_point);
  if (found == tables().parts.end()) {
    into.push_back(code_point);
    return;
  }
  decompose(found->second.first, into);
  if (found->second.second != 0) decompose(found->second.second, into);
}

std::optional<char32_t> compose(char32_t first, char32_t second) {
  if (first >= kLeadFirst && first < kLeadFirst + kLeads && second >= kVowelFirst &&
      second < kVowelFirst + kVowels) {
    return kHangulFirst + ((first - kLeadFirst) * kVowels + second - kVowelFirst) * kTails;
  }
  if (first >= kHangulFirst && first < kHangulFirst + kHangul &&
      (first - kHangulFirst) % kTails == 0 && second > kTailBefore &&
      second < kTailBefore + kTails) {
    return first + (second - kTailBefore);
  }
  const auto found = tables().composite.find(Tables::pair_of(first, second));
  if (found == tables().composite.end()) return std::nullopt;
  return found->second;
}

// Annex 15's algorithm on one stretch of text.
void append_normalized(std::string_view text, std::string& normalized) {
  std::u32string characters;
  for (size_t position = 0; position < text.size();) {
    const Character character = character_at(text, position);
    decompose(character.code_point, characters);
    position += character.bytes;
  }
  const auto class_of = [](char32_t c) { return tables().combining_class[c]; };
  for (auto begin = characters.begin(); begin != characters.end();) {
    const auto end =
        std::find_if(begin, characters.end(), [&](char32_t c) { return class_of(c) == 0; });
    std::stable_sort(begin, end, [&](char32_t a, char32_t b) { return class_of(a) < class_of(b); });
    begin = end == characters.end() ? end : end + 1;
  }
  std::optional<size_t> starter;  // to which marks may be joined
  size_t kept = 0;
  for (const char32_t c : characters) {
    const uint8_t own = class_of(c);
    if (starter) {
      // Blocked by a mark of the same or a higher class, or another starter, in between.
      const uint8_t before = kept - 1 == *starter ? 0 : class_of(characters[kept - 1]);
      const bool adjacent = kept - 1 == *starter;
      const auto joined = adjacent || (before != 0 && before < own)
                              ? compose(characters[*starter], c)
                              : std::nullopt;
      if (joined) {
        characters[*starter] = *joined;
        continue;
      }
    }
    characters[kept] = c;
    if (own == 0) starter = kept;
    ++kept;
  }
  for (size_t i = 0; i < kept; ++i)
    append_character(characters[i], normalized);
}

}  // namespace

bool begins_nfc(char32_t code_point) { return tables().begins[code_point]; }

void append_nfc(std::string_view text, std::string& normalized) {
  size_t done = 0;     // up to here it has been appended
  size_t begin = 0;    // of the last character that begins anew
  bool dirty = false;  // whether another one followed it
  const auto flush = [&](size_t end) {
    if (dirty) {
      normalized += text.substr(done, begin - done);
      append_normalized(text.substr(begin, end - begin), normalized);
      done = end;
    }
    dirty = false;
    begin = end;
  };
  for (size_t position = 0; position < text.size();) {
    // No character below U+0300 meets another.
    if (static_cast<unsigned char>(text[position]) < 0xCC) {
      flush(position);
      position += static_cast<unsigned char>(text[position]) < 0x80 ? 1 : 2;
      continue;
    }
    const Character character = character_at(text, position);
    if (begins_nfc(character.code_point)) {
      flush(position);
    } else {
      dirty = true;
    }
    position += character.bytes;
  }
  flush(text.size());
  normalized += text.substr(done);
}

}  // namespace trainyard::data

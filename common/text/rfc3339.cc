#include "common/text/rfc3339.h"

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>

namespace trainyard::text {
namespace {

using std::chrono::days;
using std::chrono::sys_days;

/// Reads fixed-width pieces from the front of a text.
class Cursor {
 public:
  explicit Cursor(std::string_view text) : text_(text) {}

  int digits(size_t width) {
    if (text_.size() < width) return fail();
    int value = 0;
    for (const char c : text_.substr(0, width)) {
      if (c < '0' || c > '9') return fail();
      value = value * 10 + (c - '0');
    }
    text_.remove_prefix(width);
    return value;
  }
  void literal(char upper) {
    if (text_.empty() || (text_[0] != upper && text_[0] != (upper | 0x20))) {
      fail();
      return;
    }
    text_.remove_prefix(1);
  }
  bool take(char c) {
    if (text_.empty() || text_[0] != c) return false;
    text_.remove_prefix(1);
    return true;
  }
  bool at_digit() const { return !text_.empty() && text_[0] >= '0' && text_[0] <= '9'; }
  bool ok() const { return ok_; }
  bool done() const { return ok_ && text_.empty(); }
  int fail() {
    ok_ = false;
    return 0;
  }

 private:
  std::string_view text_;
  bool ok_ = true;
};

int64_t read_fraction(Cursor& cursor) {
  int64_t nanoseconds = 0;
  int64_t unit = 100'000'000;
  if (!cursor.at_digit()) cursor.fail();
  for (; cursor.at_digit(); unit /= 10)
    nanoseconds += unit * cursor.digits(1);
  return nanoseconds;
}

int64_t read_offset_s(Cursor& cursor) {
  if (cursor.take('Z') || cursor.take('z')) return 0;
  int sign = 0;
  if (cursor.take('+')) {
    sign = 1;
  } else if (cursor.take('-')) {
    sign = -1;
  } else {
    return cursor.fail();
  }
  const int hours = cursor.digits(2);
  cursor.literal(':');
  const int minutes = cursor.digits(2);
  if (hours > 23 || minutes > 59) cursor.fail();
  return sign * (hours * 3600 + minutes * 60);
}

/// "2026-01-02T03:04:05": the time without its fraction, rounded down.
std::string format_seconds(Time time) {
  const auto day = std::chrono::floor<days>(time);
  const std::chrono::year_month_day date(day);
  const std::chrono::hh_mm_ss clock(time - day);
  std::array<char, 64> buffer;
  std::snprintf(buffer.data(), buffer.size(), "%04d-%02u-%02uT%02d:%02d:%02d",
                static_cast<int>(date.year()), static_cast<unsigned>(date.month()),
                static_cast<unsigned>(date.day()), static_cast<int>(clock.hours().count()),
                static_cast<int>(clock.minutes().count()),
                static_cast<int>(clock.seconds().count()));
  return buffer.data();
}

long long nanoseconds_of(Time time) {
  return (time - std::chrono::floor<std::chrono::seconds>(time)).count();
}

}  // namespace

std::string format_time(Time time) {
  std::string text = format_seconds(time);
  if (const long long nanoseconds = nanoseconds_of(time); nanoseconds != 0) {
    std::array<char, 32> fraction;
    std::snprintf(fraction.data(), fraction.size(), ".%09lld", nanoseconds);
    text += fraction.data();
    text.erase(text.find_last_not_of('0') + 1);
  }
  return text + "Z";
}

std::string format_micro_time(Time time) {
  std::array<char, 32> fraction;
  std::snprintf(fraction.data(), fraction.size(), ".%06lldZ", nanoseconds_of(time) / 1000);
  return format_seconds(time) + fraction.data();
}

std::optional<Time> parse_time(std::string_view text) {
  constexpr int kFirstYear = 1678;
  constexpr int kLastYear = 2261;
  Cursor cursor(text);
  const int year = cursor.digits(4);
  cursor.literal('-');
  const int month = cursor.digits(2);
  cursor.literal('-');
  const int day = cursor.digits(2);
  cursor.literal('T');
  const int hour = cursor.digits(2);
  cursor.literal(':');
  const int minute = cursor.digits(2);
  cursor.literal(':');
  const int second = cursor.digits(2);
  const int64_t nanoseconds = cursor.take('.') ? read_fraction(cursor) : 0;
  const int64_t offset_s = read_offset_s(cursor);
  const std::chrono::year_month_day date{std::chrono::year(year),
                                         std::chrono::month(static_cast<unsigned>(month)),
                                         std::chrono::day(static_cast<unsigned>(day))};
  if (!cursor.done() || !date.ok() || hour > 23 || minute > 59 || second > 59) return std::nullopt;
  if (year < kFirstYear || year > kLastYear) return std::nullopt;
  return Time(sys_days(date)) + std::chrono::hours(hour) + std::chrono::minutes(minute) +
         std::chrono::seconds(second - offset_s) + std::chrono::nanoseconds(nanoseconds);
}

}  // namespace trainyard::text

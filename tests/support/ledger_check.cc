#include "tests/support/ledger_check.h"

#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <optional>

#include <nlohmann/json.hpp>

#include "common/text/rfc3339.h"

namespace trainyard::testing_support {
namespace {

using nlohmann::json;

constexpr std::array kBadput = {"queue",      "startup",   "rendezvous", "restore",
                                "checkpoint", "recompute", "stall",      "infra"};
/// `ratio` is written with four digits.
constexpr double kRatioError = 0.6e-4;

class Check {
 public:
  explicit Check(const json& status) : status_(status) {}

  std::vector<std::string> operator()() {
    if (!status_.contains("goodput")) {
      if (status_.contains("startTime")) wrong_.emplace_back("started, but has no goodput");
      return wrong_;
    }
    const json& goodput = status_["goodput"];
    const int64_t wall = category(goodput, "wallSeconds");
    const int64_t productive = category(goodput, "productiveSeconds");
    const int64_t stopped = category(goodput, "stoppedSeconds");
    int64_t badput = 0;
    for (const char* name : kBadput)
      badput += category(goodput.value("badputSeconds", json::object()), name);
    expect("productive + badput", productive + badput, "wall", wall);
    check_times(goodput, wall + stopped);
    const double ratio = std::strtod(goodput.value("ratio", "0").c_str(), nullptr);
    const double wanted =
        wall == 0 ? 0 : static_cast<double>(productive) / static_cast<double>(wall);
    if (!(std::abs(ratio - wanted) < kRatioError)) {
      wrong_.push_back("ratio is " + std::to_string(ratio) + ", wanted " + std::to_string(wanted));
    }
    return wrong_;
  }

 private:
  /// An absent one is zero.
  int64_t category(const json& object, const char* key) {
    const std::string text = object.value(key, "0");
    const int64_t ms = milliseconds_of(text);
    if (ms < 0) wrong_.push_back(std::string(key) + " is \"" + text + "\"");
    return ms;
  }

  void check_times(const json& goodput, int64_t accounted) {
    const auto start = unix_milliseconds_of(status_.value("startTime", ""));
    const auto counted =
        unix_milliseconds_of(goodput.value("counted", json::object()).value("time", ""));
    if (!start || !counted) {
      wrong_.emplace_back("startTime or counted.time is missing");
      return;
    }
    expect("wall + stopped", accounted, "counted - start", *counted - *start);
    if (const auto end = unix_milliseconds_of(status_.value("completionTime", ""))) {
      expect("counted.time", *counted, "completionTime", *end);
    }
  }

  void expect(const std::string& what, int64_t found, const std::string& as, int64_t wanted) {
    if (found == wanted) return;
    wrong_.push_back(what + " is " + std::to_string(found) + " ms, " + as + " is " +
                     std::to_string(wanted) + " ms");
  }

  const json& status_;
  std::vector<std::string> wrong_;
};

}  // namespace

int64_t milliseconds_of(const std::string& seconds) {
  constexpr size_t kDigits = 3;
  const size_t point = seconds.find('.');
  const std::string whole = seconds.substr(0, point);
  std::string fraction = point == std::string::npos ? "" : seconds.substr(point + 1);
  const std::string digits = "0123456789";
  const bool plain = whole.find_first_not_of(digits) == std::string::npos &&
                     fraction.find_first_not_of(digits) == std::string::npos;
  if (whole.empty() || !plain || fraction.size() > kDigits) return -1;
  fraction.resize(kDigits, '0');
  return std::stoll(whole + fraction);
}

std::optional<int64_t> unix_milliseconds_of(const std::string& time) {
  const auto parsed = text::parse_time(time);
  if (!parsed) return std::nullopt;
  return std::chrono::floor<std::chrono::milliseconds>(*parsed).time_since_epoch().count();
}

std::vector<std::string> faults_of_ledger(const json& status) { return Check(status)(); }

}  // namespace trainyard::testing_support

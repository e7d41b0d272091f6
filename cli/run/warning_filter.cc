#include "cli/run/warning_filter.h"

#include <utility>

namespace trainyard::cli {
namespace {

constexpr int64_t kFactor = 8;

}  // namespace

std::optional<std::string> WarningFilter::take(const std::string& message) {
  if (message == std::exchange(last_, message)) return std::nullopt;  // of the next rank
  std::string kind = message;
  std::erase_if(kind, [](char c) { return c >= '0' && c <= '9'; });
  if (kind != std::exchange(kind_, kind)) {
    count_ = 0;
    shown_at_ = 1;
  }
  if (++count_ < shown_at_) return std::nullopt;
  shown_at_ *= kFactor;
  if (count_ == 1) return message;
  return message + " (" + std::to_string(count_) + " such warnings by now)";
}

}  // namespace trainyard::cli

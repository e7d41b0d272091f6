#include "common/base/seconds_text.h"

#include <cstdint>

namespace trainyard {

std::string decimal_seconds(std::chrono::milliseconds time) {
  const auto count = static_cast<uint64_t>(time.count());
  const uint64_t magnitude = time.count() < 0 ? 0 - count : count;
  std::string text = (time.count() < 0 ? "-" : "") + std::to_string(magnitude / 1000);
  const std::string fraction = std::to_string(1000 + magnitude % 1000).substr(1);
  if (fraction == "000") return text;
  text += "." + fraction;
  return text.erase(text.find_last_not_of('0') + 1);
}

std::string seconds_text(std::chrono::milliseconds time) { return decimal_seconds(time) + " s"; }

}  // namespace trainyard

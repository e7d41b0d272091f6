#pragma once

#include <chrono>
#include <string>

namespace trainyard {

/// "12.345", "600": without zeros at the end.
std::string decimal_seconds(std::chrono::milliseconds time);
/// "600 s", "0.25 s": for messages.
std::string seconds_text(std::chrono::milliseconds time);

}  // namespace trainyard

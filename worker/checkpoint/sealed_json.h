#pragma once

#include <string>
#include <string_view>

#include "common/base/error.h"

/// JSON text that carries its own checksum, so that any changed bit is found: the last member is
/// `"checksum": "<XXH3-128 of every byte before this member's comma, 32 hexadecimal digits>"`, and
/// its spelling is fixed to the byte. Pure.
namespace trainyard::checkpoint {

/// Seals the text of a JSON object with at least one member. `object` must end with '}'.
std::string seal_json(std::string object);

/// The checksum a sealed text carries. Errors: kInvalidData when the text does not end with one or
/// does not match it; `what` names the file in messages.
Result<std::string> check_seal(std::string_view text, std::string_view what);

}  // namespace trainyard::checkpoint

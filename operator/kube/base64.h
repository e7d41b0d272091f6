#pragma once

#include <string>
#include <string_view>

#include "common/base/error.h"

namespace trainyard::kube {

/// Decodes RFC 4648 base64 with padding; line ends between characters are skipped. Errors:
/// kInvalidConfig names the place of what does not belong there.
Result<std::string> decode_base64(std::string_view text);

}  // namespace trainyard::kube

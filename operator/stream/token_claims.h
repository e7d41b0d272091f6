#pragma once

#include <string_view>

#include "common/base/error.h"
#include "common/base/time.h"
#include "operator/stream/token_review.h"

namespace trainyard::stream {

/// Whose token it claims to be, by its payload alone: nobody has looked at its signature, so this
/// can refuse a token and admit none. Costs nothing but the reading of at most 16 KiB. Errors:
/// kInvalidConfig with the reason for one that the API server would refuse whatever signed it: no
/// JWT, of another audience, expired at `now` for longer than clocks differ, bound to no pod.
/// Source: RFC 7519; the claims of Kubernetes' projected ServiceAccount tokens.
Result<TokenOwner> claims_of(std::string_view token, Time now);

}  // namespace trainyard::stream

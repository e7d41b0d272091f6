#pragma once

#include <string>
#include <string_view>

#include "common/base/error.h"
#include "operator/kube/client.h"

namespace trainyard::stream {

/// Whom the API server says a token belongs to.
struct TokenOwner {
  std::string ns;
  std::string pod_name;
  std::string pod_uid;

  bool operator==(const TokenOwner&) const = default;
};

/// Asks the API server (TokenReview) about a token for the audience kControlAudience. Errors:
/// kInvalidConfig with the reason for a token that is not accepted: forged, expired, of another
/// audience, bound to no pod; those of the API server.
Result<TokenOwner> review_token(const kube::Client& client, std::string_view token);

}  // namespace trainyard::stream

#include "operator/stream/token_review.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "common/log/text.h"
#include "operator/cluster/members.h"
#include "operator/kube/resource.h"
#include "operator/render/names.h"

namespace trainyard::stream {
namespace {

using cluster::at;
using cluster::text_at;
using nlohmann::json;

// The API server's names (k8s.io/apiserver, serviceaccount.UserInfo).
constexpr std::string_view kServiceAccount = "system:serviceaccount:";
constexpr char kPodName[] = "authentication.kubernetes.io/pod-name";
constexpr char kPodUid[] = "authentication.kubernetes.io/pod-uid";
constexpr size_t kMaxReasonBytes = 200;

Error refused(std::string_view why) {
  return {ErrorCode::kInvalidConfig, "token refused: " + printable_text(why, kMaxReasonBytes)};
}

/// The first of a list of texts.
std::string first_of(const json& list) {
  return list.is_array() && !list.empty() && list[0].is_string() ? list[0].get<std::string>()
                                                                 : std::string();
}

bool names_audience(const json& audiences) {
  return audiences.is_array() &&
         std::find(audiences.begin(), audiences.end(), render::kControlAudience) != audiences.end();
}

}  // namespace

Result<TokenOwner> review_token(const kube::Client& client, std::string_view token) {
  const auto reply = client.create(
      kube::kTokenReviews, "",
      {{"spec", {{"token", token}, {"audiences", json::array({render::kControlAudience})}}}});
  if (!reply) return reply.error().to_error("create TokenReview");
  const json& status = at(*reply, "status");
  if (at(status, "authenticated") != true) {
    const std::string why = text_at(status, "error");
    return refused(why.empty() ? "the API server does not know it" : why);
  }
  // A server that knows nothing of audiences answers without them, for tokens of any.
  if (!names_audience(at(status, "audiences"))) return refused("it is for another audience");
  const json& user = at(status, "user");
  const std::string name = text_at(user, "username");
  if (!name.starts_with(kServiceAccount)) return refused("it is not a ServiceAccount's");
  const std::string account = name.substr(kServiceAccount.size());
  TokenOwner owner{account.substr(0, account.find(':')), first_of(at(at(user, "extra"), kPodName)),
                   first_of(at(at(user, "extra"), kPodUid))};
  if (owner.pod_uid.empty()) return refused("it is bound to no pod");
  return owner;
}

}  // namespace trainyard::stream

#include "operator/stream/token_claims.h"

#include <algorithm>
#include <chrono>
#include <string>

#include <nlohmann/json.hpp>

#include "operator/cluster/members.h"
#include "operator/kube/base64.h"
#include "operator/kube/json_text.h"
#include "operator/render/names.h"

namespace trainyard::stream {
namespace {

using cluster::at;
using cluster::text_at;
using nlohmann::json;

constexpr size_t kMaxTokenBytes = 16 << 10;
/// By how much the clock of the API server may be behind ours.
constexpr std::chrono::minutes kClockSkew{5};

Error not_ours(const char* why) {
  return {ErrorCode::kInvalidConfig, std::string("token refused: ") + why};
}

/// The second of the three parts that dots separate; empty where there are not three.
std::string_view payload_of(std::string_view token) {
  if (std::count(token.begin(), token.end(), '.') != 2) return {};
  const size_t from = token.find('.') + 1;
  return token.substr(from, token.rfind('.') - from);
}

/// RFC 4648's alphabet for URLs, without padding, as the other one with it.
std::string padded_base64(std::string_view url_text) {
  std::string text(url_text);
  std::replace(text.begin(), text.end(), '-', '+');
  std::replace(text.begin(), text.end(), '_', '/');
  text.append((4 - text.size() % 4) % 4, '=');
  return text;
}

bool is_for_us(const json& audience) {
  if (audience.is_array()) return std::any_of(audience.begin(), audience.end(), is_for_us);
  return audience.is_string() && audience.get_ref<const std::string&>() == render::kControlAudience;
}

}  // namespace

Result<TokenOwner> claims_of(std::string_view token, Time now) {
  if (token.size() > kMaxTokenBytes) return not_ours("it is longer than 16 KiB");
  const std::string_view payload = payload_of(token);
  if (payload.empty()) return not_ours("it is not a JWT");
  const Result<std::string> text = kube::decode_base64(padded_base64(payload));
  if (!text) return not_ours("its payload is not base64");
  const Result<json> claims = kube::parse_json_text(*text);
  if (!claims || !claims->is_object()) return not_ours("its payload is not a JSON object");
  if (!is_for_us(at(*claims, "aud"))) return not_ours("it is for another audience");
  const json& expires = at(*claims, "exp");
  const double oldest =
      std::chrono::duration<double>((now - kClockSkew).time_since_epoch()).count();
  if (!expires.is_number() || !(expires.get<double>() >= oldest)) {
    return not_ours("it has expired, or does not say when it does");
  }
  const json& bound = at(*claims, "kubernetes.io");
  const json& pod = at(bound, "pod");
  TokenOwner owner{text_at(bound, "namespace"), text_at(pod, "name"), text_at(pod, "uid")};
  if (owner.ns.empty() || owner.pod_name.empty() || owner.pod_uid.empty()) {
    return not_ours("it is bound to no pod");
  }
  return owner;
}

}  // namespace trainyard::stream

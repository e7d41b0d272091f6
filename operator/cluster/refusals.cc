#include "operator/cluster/refusals.h"

#include <string>

#include <nlohmann/json.hpp>

#include "common/api/training_job.h"
#include "control/status_edit.h"
#include "operator/cluster/members.h"
#include "operator/cluster/room.h"

namespace trainyard::cluster {
namespace {

using nlohmann::json;

constexpr int64_t kValueBytes = 60;

/// Of signs the server says more itself.
bool is_unreadable(const json& value) {
  if (!value.is_string()) return false;
  const std::string text = value.get<std::string>();
  return !text.starts_with('+') && !text.starts_with('-') && !parse_quantity(text);
}

/// "FIELD: "VALUE" is no quantity"; empty where all are some.
std::string unreadable_of(const json& pod_spec, const char* list) {
  const json& containers = at(pod_spec, list);
  for (size_t i = 0; containers.is_array() && i < containers.size(); ++i) {
    for (const char* const part : {"limits", "requests"}) {
      const json& amounts = at(at(containers[i], "resources"), part);
      if (!amounts.is_object()) continue;
      for (const auto& [name, value] : amounts.items()) {
        if (!is_unreadable(value)) continue;
        return "spec.template.spec." + std::string(list) + "[" + std::to_string(i) +
               "].resources." + part + "[" + name + "]: \"" +
               control::bounded_text(value.get<std::string>(), kValueBytes) + "\" is no quantity";
      }
    }
  }
  return {};
}

}  // namespace

std::optional<control::Refusal> refusal_of(const kube::ApiError& error) {
  switch (error.reason) {
    case kube::Reason::kBadRequest:
    case kube::Reason::kInvalid:
    case kube::Reason::kRequestEntityTooLarge:
      return control::Refusal{api::reason::kInvalidPodTemplate, error.message};
    case kube::Reason::kForbidden:
      return control::Refusal{api::reason::kAdmissionRefused, error.message};
    default:
      break;
  }
  constexpr int kBadRequest = 400;
  constexpr int kUnprocessable = 422;
  constexpr int kForbidden = 403;
  // Webhooks may answer without a reason.
  if (error.status == kBadRequest || error.status == kUnprocessable) {
    return control::Refusal{api::reason::kInvalidPodTemplate, error.message};
  }
  if (error.status == kForbidden) {
    return control::Refusal{api::reason::kAdmissionRefused, error.message};
  }
  return std::nullopt;
}

void name_quantity(std::string_view pod_template, control::Refusal& refusal) {
  // "quantities must match the regular expression ...", "unable to parse quantity's suffix".
  if (refusal.message.find("quantit") == std::string::npos) return;
  const json whole = json::parse(pod_template, nullptr, /*allow_exceptions=*/false);
  const json& pod_spec = at(whole, "spec");
  std::string fault = unreadable_of(pod_spec, "containers");
  if (fault.empty()) fault = unreadable_of(pod_spec, "initContainers");
  if (fault.empty()) return;
  refusal.message = fault + "; want e.g. 500m, 2 or 4Gi (" + refusal.message + ")";
}

}  // namespace trainyard::cluster

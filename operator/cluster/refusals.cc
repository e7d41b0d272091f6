#include "operator/cluster/refusals.h"

#include <charconv>
#include <string>

#include <nlohmann/json.hpp>

#include "common/api/training_job.h"
#include "common/text/quantity.h"
#include "control/status_edit.h"
#include "operator/cluster/members.h"

namespace trainyard::cluster {
namespace {

using nlohmann::json;

constexpr int64_t kValueBytes = 60;

/// Of signs the server says more itself.
bool is_unreadable(const json& value) {
  if (!value.is_string()) return false;
  const std::string written = value.get<std::string>();
  return !written.starts_with('+') && !written.starts_with('-') && !text::parse_quantity(written);
}

/// "FIELD: "VALUE" is not a quantity"; empty where all are some.
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
               control::bounded_text(value.get<std::string>(), kValueBytes) +
               "\" is not a quantity";
      }
    }
  }
  return {};
}

size_t count_of(const json& object, const char* list) {
  const json& items = at(object, list);
  return items.is_array() ? items.size() : 0;
}

/// Every index that follows `list` in `text` made smaller by `added`, as in the template; those
/// of the items that were added stay.
void lower_indexes(std::string& text, const std::string& list, size_t added) {
  if (added == 0) return;
  constexpr std::string_view kWhere = "spec.template.";
  for (size_t found = text.find(list); found != std::string::npos; found = text.find(list, found)) {
    const size_t digits = found + list.size();
    size_t index = 0;
    const auto [end, error] =
        std::from_chars(text.data() + digits, text.data() + text.size(), index);
    const auto length = static_cast<size_t>(end - text.data()) - digits;
    found = digits;
    if (error != std::errc() || index < added) continue;
    text.replace(digits, length, std::to_string(index - added));
    text.insert(digits - list.size(), kWhere);
    found += kWhere.size();
  }
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

void name_indexes(const json& pod, const json& pod_template, control::Refusal& refusal) {
  const json& rendered = at(pod, "spec");
  const json& theirs = at(pod_template, "spec");
  lower_indexes(refusal.message, "spec.initContainers[",
                count_of(rendered, "initContainers") - count_of(theirs, "initContainers"));
  const json& containers = at(theirs, "containers");
  for (size_t i = 0; containers.is_array() && i < containers.size(); ++i) {
    lower_indexes(
        refusal.message, "spec.containers[" + std::to_string(i) + "].env[",
        count_of(at(rendered, "containers").at(i), "env") - count_of(containers[i], "env"));
  }
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

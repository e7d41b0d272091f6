#include "operator/render/companions.h"

#include <nlohmann/json.hpp>

#include "common/api/encode.h"
#include "operator/render/environment.h"
#include "operator/render/names.h"

namespace trainyard::render {
namespace {

using nlohmann::json;

/// The job's pods that count: a condemned one has lost the second label.
json selector_of(const api::ObjectMeta& job) {
  return {{kLabelJobUid, job.uid}, {kLabelMember, kMemberTrue}};
}

}  // namespace

json owner_reference(const api::ObjectMeta& job) {
  return {{"apiVersion", api::kApiVersion},
          {"kind", api::kKind},
          {"name", job.name},
          {"uid", job.uid},
          {"controller", true},
          {"blockOwnerDeletion", true}};
}

json companion_metadata(const api::ObjectMeta& job, const std::string& name) {
  return {{"name", name},
          {"namespace", job.namespace_name},
          {"labels", {{kLabelJobName, job.name}, {kLabelJobUid, job.uid}}},
          {"ownerReferences", json::array({owner_reference(job)})}};
}

json render_service(const api::ObjectMeta& job, const api::TrainingJobSpec& spec,
                    Addresses addresses) {
  json made = {
      {"apiVersion", "v1"},
      {"kind", "Service"},
      {"metadata", companion_metadata(job, service_name(job))},
      {"spec",
       {{"clusterIP", "None"},
        // Without a selector it would be that of all families that there are.
        {"ipFamilyPolicy", "SingleStack"},
        {"publishNotReadyAddresses", true},
        {"ports", json::array({{{"name", kRendezvousPort}, {"port", spec.rendezvous.port}}})}}}};
  if (addresses == Addresses::kSelected) made["spec"]["selector"] = selector_of(job);
  return made;
}

json render_engine_config(const api::ObjectMeta& job, const api::TrainingJobSpec& spec) {
  return {{"apiVersion", "v1"},
          {"kind", "ConfigMap"},
          {"metadata", companion_metadata(job, engine_config_name(job, spec))},
          {"immutable", true},
          {"data",
           {{kEngineFile, api::encode_engine(*spec.engine, api::JsonStyle::kIndented)},
            {kCheckpointPolicyFile,
             api::encode_checkpoint_policy(spec.checkpoint_policy, api::JsonStyle::kIndented)}}}};
}

json render_control_config(const api::ObjectMeta& job, const std::string& authorities) {
  return {{"apiVersion", "v1"},
          {"kind", "ConfigMap"},
          {"metadata", companion_metadata(job, control_config_name(job))},
          {"data", {{kAuthoritiesFile, authorities}}}};
}

json render_disruption_budget(const api::ObjectMeta& job, int64_t members) {
  return {{"apiVersion", "policy/v1"},
          {"kind", "PodDisruptionBudget"},
          {"metadata", companion_metadata(job, service_name(job))},
          {"spec",
           {{"minAvailable", members - 1},
            {"selector", {{"matchLabels", selector_of(job)}}},
            {"unhealthyPodEvictionPolicy", "AlwaysAllow"}}}};
}

}  // namespace trainyard::render

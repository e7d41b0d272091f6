// Any JSON as an object that an API server shows the operator (TrainingJobs and pods are written by
// tenants): what the views take is what it says it is, and a job without faults is rendered under
// its own name and owner.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "control/pod_spec.h"
#include "operator/cluster/views.h"
#include "operator/kube/json_text.h"
#include "operator/render/companions.h"
#include "operator/render/environment.h"
#include "operator/render/pod.h"
#include "tests/fuzz/require.h"

namespace {

namespace cluster = trainyard::cluster;
namespace control = trainyard::control;
namespace kube = trainyard::kube;
namespace render = trainyard::render;
using nlohmann::json;

void check_rendered(const cluster::JobView& view) {
  const auto& metadata = view.job.metadata;
  const auto& spec = view.job.spec;
  const control::PodSpec pod = control::make_pod_spec(metadata, spec, 0, 1, 1);
  const json made = render::render_pod(metadata, spec, pod, {"image", "operator.svc:9443", ""});
  TRAINYARD_REQUIRE(made.at("metadata").at("name") == pod.name, "a pod has the name it is given");
  const json& owners = made.at("metadata").at("ownerReferences");
  TRAINYARD_REQUIRE(owners.size() == 1 && owners[0].at("uid") == metadata.uid,
                    "a pod belongs to its job alone");
  TRAINYARD_REQUIRE(
      render::trainer_index(made.at("spec")) < made.at("spec").at("containers").size(),
      "a pod has a container that counts");
  TRAINYARD_REQUIRE(kube::parse_json_text(kube::to_json_text(made)).has_value(),
                    "what is sent is JSON");
  if (spec.engine) {
    TRAINYARD_REQUIRE(render::render_engine_config(metadata, spec).is_object(),
                      "a companion is an object");
  }
  const json service = render::render_service(metadata, spec);
  TRAINYARD_REQUIRE(service.at("metadata").at("namespace") == metadata.namespace_name,
                    "a companion stays in its job's namespace");
}

void check_job(const json& object) {
  const auto view = cluster::view_of_job(object);
  if (!view) return;
  TRAINYARD_REQUIRE(!view->meta.name.empty(), "a job that is taken has a name");
  for (const std::string& fault : view->faults)
    TRAINYARD_REQUIRE(!fault.empty(), "a fault says what is wrong");
  if (view->faults.empty()) check_rendered(*view);
}

void check_pod(const json& object) {
  const auto view = cluster::view_of_pod(object);
  if (!view) return;
  TRAINYARD_REQUIRE(!view->meta.name.empty() && !view->meta.uid.empty(), "a pod has name and uid");
  TRAINYARD_REQUIRE(cluster::same_to_plan(*view, *view), "a view is the same as itself");
  TRAINYARD_REQUIRE(view->job_uid == cluster::controlling_job(object), "a pod is its owner's");
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): the name that libFuzzer calls
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto object =
      kube::parse_json_text(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!object || !object->is_object()) return 0;
  check_job(*object);
  check_pod(*object);
  const auto node = cluster::view_of_node(*object);
  TRAINYARD_REQUIRE(!node || cluster::same_room(*node, *node), "a node is the same as itself");
  (void)cluster::view_of_companion(*object);
  return 0;
}

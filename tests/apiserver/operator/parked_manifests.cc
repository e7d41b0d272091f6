#include "tests/apiserver/operator/parked_manifests.h"

namespace trainyard::apiserver {
namespace {

constexpr Base T = Base::kTemplate;
constexpr Base E = Base::kEngine;

// clang-format off
constexpr BadManifest kManifests[] = {
    {T, R"({"spec": {"failurePolicy": {"rules": [{"name": "a", "action": "FailJob", "onExitCodes": {"containerName": "sidecar", "values": [1]}}]}}})", "spec.failurePolicy.rules[0].onExitCodes.containerName"},
    {T, R"({"spec": {"successPolicy": {"rules": [{"succeededIndexes": "2"}]}}})", "spec.successPolicy.rules[0].succeededIndexes"},
    {T, R"({"spec": {"successPolicy": {"rules": [{"succeededIndexes": "0-5"}]}}})", "spec.successPolicy.rules[0].succeededIndexes"},
    {T, R"({"spec": {"successPolicy": {"rules": [{"succeededIndexes": "1-0"}]}}})", "spec.successPolicy.rules[0].succeededIndexes"},
    {T, R"({"spec": {"successPolicy": {"rules": [{"succeededIndexes": "1,0"}]}}})", "spec.successPolicy.rules[0].succeededIndexes"},
    {T, R"({"spec": {"successPolicy": {"rules": [{"succeededIndexes": "1,1"}]}}})", "spec.successPolicy.rules[0].succeededIndexes"},
    {T, R"({"spec": {"successPolicy": {"rules": [{"succeededCount": 3}]}}})", "spec.successPolicy.rules[0].succeededCount"},
    {T, R"({"spec": {"successPolicy": {"rules": [{"succeededCount": 1}, {"succeededIndexes": "0", "succeededCount": 2}]}}})", "spec.successPolicy.rules[1].succeededCount"},
    {T, R"({"spec": {"numProcPerNode": 2, "template": {"spec": {"containers": [{"name": "main", "image": "i"}]}}}})", "spec.template.spec.containers[0].command"},
    {T, R"({"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "team"}}})", "metadata.labels.kueue.x-k8s.io/queue-name"},
    // This operator serves no control stream.
    {T, R"({"spec": {"numProcPerNode": 2}})", "spec.numProcPerNode"},
    {E, R"({"spec": {"engine": {"model": {"hidden": 100}}}})", "spec.engine.model.hidden"},
    {E, R"({"spec": {"engine": {"model": {"heads": 7}}}})", "spec.engine.model.hidden"},
    {E, R"({"spec": {"engine": {"model": {"kvHeads": 4}}}})", "spec.engine.model.kvHeads"},
    {E, R"({"spec": {"engine": {"data": {"sequenceLength": 2048}}}})", "spec.engine.data.sequenceLength"},
    {E, R"({"spec": {"engine": {"batch": {"globalSequences": 1}}}})", "spec.engine.batch.globalSequences"},
    {E, R"({"spec": {"numProcPerNode": 8}})", "spec.engine.batch.globalSequences"},
    {E, R"({"spec": {"engine": {"device": "Cuda"}, "numProcPerNode": 2, "template": {"spec": {"containers": [{"name": "trainer", "resources": {"limits": {"nvidia.com/gpu": 4}}}]}}}})", "spec.template.spec.containers"},
    {E, R"({"spec": {"engine": {"device": "Cpu"}, "template": {"spec": {"containers": [{"name": "trainer", "resources": {"limits": {"nvidia.com/gpu": 1}}}]}}}})", "spec.template.spec.containers"},
    {E, R"({"spec": {"engine": {"device": "Cuda"}, "numProcPerNode": 2, "template": {"spec": {"containers": [{"name": "trainer", "resources": {"limits": {"nvidia.com/mig-1g.10gb": 2}}}]}}}})", "spec.numProcPerNode"},
    {E, R"({"spec": {"engine": {"parallelism": {"pipeline": 15}}}})", "spec.engine.parallelism.pipeline"},
    {E, R"({"spec": {"engine": {"parallelism": {"shard": 3}}}})", "spec.numNodes"},
};
// clang-format on

}  // namespace

std::span<const BadManifest> parked_manifests() { return kManifests; }

}  // namespace trainyard::apiserver

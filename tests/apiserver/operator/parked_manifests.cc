#include "tests/apiserver/operator/parked_manifests.h"

namespace trainyard::apiserver {
namespace {

constexpr Base T = Base::kTemplate;
constexpr Base E = Base::kEngine;

// clang-format off
constexpr BadManifest kManifests[] = {
    {T, R"({"spec": {"failurePolicy": {"restartStrategy": "InPlace"}}})", "spec.failurePolicy.restartStrategy"},
    {T, R"({"spec": {"failurePolicy": {"rules": [{"name": "a", "action": "FailJob", "onExitCodes": {"containerName": "sidecar", "values": [1]}}]}}})", "spec.failurePolicy.rules[0].onExitCodes.containerName"},
    {T, R"({"spec": {"progressPolicy": {"onStall": "RestartProcess"}}})", "spec.progressPolicy.onStall"},
    {T, R"({"spec": {"progressPolicy": {"onStall": "ReplacePod"}}})", "spec.progressPolicy.onStall"},
    {T, R"({"spec": {"progressPolicy": {"onStall": "ReplaceNode"}}})", "spec.progressPolicy.onStall"},
    {T, R"({"spec": {"spares": {"count": 1}}})", "spec.spares.count"},
    {T, R"({"spec": {"scheduling": {"provider": "Volcano"}}})", "spec.scheduling.provider"},
    {T, R"({"spec": {"scheduling": {"provider": "Coscheduling"}}})", "spec.scheduling.provider"},
    {T, R"({"spec": {"scheduling": {"provider": "Kueue", "queue": "a"}}})", "spec.scheduling.provider"},
    {T, R"({"spec": {"scheduling": {"topology": [{"key": "rack"}]}}})", "spec.scheduling.topology"},
    {T, R"({"spec": {"successPolicy": {"rules": [{"succeededIndexes": "2"}]}}})", "spec.successPolicy.rules[0].succeededIndexes"},
    {T, R"({"spec": {"successPolicy": {"rules": [{"succeededIndexes": "0-5"}]}}})", "spec.successPolicy.rules[0].succeededIndexes"},
    {T, R"({"spec": {"successPolicy": {"rules": [{"succeededIndexes": "1-0"}]}}})", "spec.successPolicy.rules[0].succeededIndexes"},
    {T, R"({"spec": {"successPolicy": {"rules": [{"succeededIndexes": "1,0"}]}}})", "spec.successPolicy.rules[0].succeededIndexes"},
    {T, R"({"spec": {"successPolicy": {"rules": [{"succeededIndexes": "1,1"}]}}})", "spec.successPolicy.rules[0].succeededIndexes"},
    {T, R"({"spec": {"successPolicy": {"rules": [{"succeededCount": 3}]}}})", "spec.successPolicy.rules[0].succeededCount"},
    {T, R"({"spec": {"successPolicy": {"rules": [{"succeededCount": 1}, {"succeededIndexes": "0", "succeededCount": 2}]}}})", "spec.successPolicy.rules[1].succeededCount"},
    {T, R"({"spec": {"numProcPerNode": 2, "template": {"spec": {"containers": [{"name": "main", "image": "i"}]}}}})", "spec.template.spec.containers[0].command"},
    // This operator serves no control stream.
    {T, R"({"spec": {"numProcPerNode": 2}})", "spec.numProcPerNode"},
    {E, R"({"spec": {"engine": {"task": "SequenceClassification"}}})", "spec.engine.task"},
    {E, R"({"spec": {"engine": {"task": "MaskedLM"}}})", "spec.engine.task"},
    {E, R"({"spec": {"engine": {"model": {"family": "Llama"}}}})", "spec.engine.model.family"},
    {E, R"({"spec": {"engine": {"model": {"family": "Qwen2"}}}})", "spec.engine.model.family"},
    {E, R"({"spec": {"engine": {"model": {"family": "Bert"}}}})", "spec.engine.model.family"},
    {E, R"({"spec": {"engine": {"model": {"family": "Mixtral"}}}})", "spec.engine.model.family"},
    {E, R"({"spec": {"engine": {"model": {"tieEmbeddings": false}}}})", "spec.engine.model.tieEmbeddings"},
    {E, R"({"spec": {"engine": {"model": {"hidden": 100}}}})", "spec.engine.model.hidden"},
    {E, R"({"spec": {"engine": {"model": {"heads": 7}}}})", "spec.engine.model.hidden"},
    {E, R"({"spec": {"engine": {"model": {"kvHeads": 4}}}})", "spec.engine.model.kvHeads"},
    {E, R"({"spec": {"engine": {"data": {"sequenceLength": 2048}}}})", "spec.engine.data.sequenceLength"},
    {E, R"({"spec": {"engine": {"batch": {"globalSequences": 1}}}})", "spec.engine.batch.globalSequences"},
    {E, R"({"spec": {"numProcPerNode": 8}})", "spec.engine.batch.globalSequences"},
    {E, R"({"spec": {"engine": {"learningRateSchedule": {"name": "WSD"}}}})", "spec.engine.learningRateSchedule.name"},
    {E, R"({"spec": {"engine": {"precision": {"compute": "FP16"}}}})", "spec.engine.precision.compute"},
    {E, R"({"spec": {"engine": {"precision": {"compute": "FP8"}}}})", "spec.engine.precision.compute"},
    {E, R"({"spec": {"engine": {"precision": {"master": "BF16"}}}})", "spec.engine.precision.master"},
    {E, R"({"spec": {"engine": {"precision": {"compute": "FP16", "lossScale": 3}}}})", "spec.engine.precision"},
    {E, R"({"spec": {"engine": {"numerics": {"mode": "Fast"}}}})", "spec.engine.numerics.mode"},
    {E, R"({"spec": {"engine": {"runtime": {"transport": "Nccl"}}}})", "spec.engine.runtime.transport"},
    {E, R"({"spec": {"engine": {"data": {"validation": ["v"]}, "evaluation": {"earlyStopPatience": 3}}}})", "spec.engine.evaluation.earlyStopPatience"},
    {E, R"({"spec": {"engine": {"parallelism": {"tensor": 2}}}})", "spec.engine.parallelism.tensor"},
    {E, R"({"spec": {"engine": {"parallelism": {"tensor": 5}}}})", "spec.engine.parallelism.tensor"},
    {E, R"({"spec": {"engine": {"parallelism": {"pipeline": 15}}}})", "spec.engine.parallelism.pipeline"},
    {E, R"({"spec": {"engine": {"parallelism": {"context": 2}}}})", "spec.engine.parallelism.context"},
    {E, R"({"spec": {"engine": {"parallelism": {"expert": 2}}}})", "spec.engine.parallelism.expert"},
    {E, R"({"spec": {"engine": {"parallelism": {"shard": 3}}}})", "spec.numNodes"},
    {E, R"({"spec": {"engine": {"parallelism": {"pipelineSchedule": "PipeDream"}}}})", "spec.engine.parallelism.pipelineSchedule"},
    {E, R"({"spec": {"engine": {"parallelism": {"contextMode": "Ulysses"}}}})", "spec.engine.parallelism.contextMode"},
    {E, R"({"spec": {"engine": {"parallelism": {"offload": ["Optimizer"]}}}})", "spec.engine.parallelism.offload"},
};
// clang-format on

}  // namespace

std::span<const BadManifest> parked_manifests() { return kManifests; }

}  // namespace trainyard::apiserver

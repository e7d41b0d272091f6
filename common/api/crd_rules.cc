#include "common/api/crd_rules.h"

#include <string_view>

#include "common/api/presets.h"
#include "common/api/schema_node.h"

namespace trainyard::api::schema {
namespace {

using text::Kind;
using text::Node;

/// A regular expression (RE2) that a string must match.
struct Pattern {
  std::string_view path;
  std::string_view pattern;
};

constexpr Pattern kPatterns[] = {
    {"spec.failurePolicy.rules.*.name", "^[A-Za-z][A-Za-z0-9_-]*$"},
    {"spec.failurePolicy.rules.*.onPodConditions.*.status", "^(True|False|Unknown)$"},
    {"spec.successPolicy.rules.*.succeededIndexes", "^([0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*)?$"},
    {"spec.checkpointPolicy.storage.persistentVolumeClaim.claimName",
     "^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"},
    {"spec.engine.data.tokens.*", "^(.|\\n)+$"},
    {"spec.engine.data.validation.*", "^(.|\\n)+$"},
};

/// How entries of a list are told apart: by the value itself, or by one key. Duplicates are
/// refused, and server-side apply merges by it.
struct ListType {
  std::string_view path;
  std::string_view key;  ///< empty: a set of values
};

constexpr ListType kListTypes[] = {
    {"spec.elasticPolicy.allowedNumNodes", ""}, {"spec.engine.parallelism.ringOrder", ""},
    {"spec.engine.parallelism.offload", ""},    {"spec.failurePolicy.budgets", "class"},
    {"spec.failurePolicy.rules", "name"},       {"status.conditions", "type"},
    {"status.restarts.classes", "class"},       {"status.roles", "name"},
};

void add_rule(Node& root, const CelRule& rule) {
  Node& rules = member(at(root, rule.path), "x-kubernetes-validations", Kind::kSequence);
  Node node =
      mapping_node({{"rule", string_node(rule.rule)}, {"message", string_node(rule.message)}});
  if (!rule.field.empty()) put(node, "fieldPath", string_node("." + rule.field));
  rules.items.push_back(std::move(node));
}

std::vector<CelRule> spec_rules() {
  return {
      {"", "self.metadata.name.matches('^[a-z]([-a-z0-9]{0,55}[a-z0-9])?$')",
       "metadata.name must be a lower-case letter, then at most 56 lower-case letters, digits and "
       "'-', no '-' at the end"},
      {"spec", "has(self.template) || has(self.engine)",
       "is needed, or a template with its own program", "engine"},
      {"spec", "!has(self.engine) || self.agent == 'Auto'",
       "must be Auto, as the agent starts the engine's ranks", "agent"},
      {"spec",
       "!has(self.template) || self.template.spec.containers.all(container, (has(self.engine) && "
       "container.name == 'trainer') || (has(container.image) && container.image != ''))",
       "must each name an image", "template.spec.containers"},
      {"spec",
       "!has(self.template) || has(self.engine) || self.agent == 'None' || "
       "self.template.spec.containers.all(container, container.name != 'trainer' || "
       "(has(container.command) && size(container.command) > 0))",
       "trainer must name its command, which the agent starts once per process (or agent: None)",
       "template.spec.containers"},
      {"spec", "!has(self.elasticPolicy) || self.elasticPolicy.minNodes <= self.numNodes",
       "must be at most numNodes", "elasticPolicy.minNodes"},
      {"spec",
       "!has(self.elasticPolicy) || !has(self.elasticPolicy.allowedNumNodes) || "
       "size(self.elasticPolicy.allowedNumNodes) == 0 || "
       "self.elasticPolicy.allowedNumNodes.exists(nodes, nodes <= self.numNodes)",
       "must hold a size of at most numNodes", "elasticPolicy.allowedNumNodes"},
      {"spec.elasticPolicy",
       "!has(self.allowedNumNodes) || (self.allowedNumNodes.isSorted() && "
       "self.allowedNumNodes.all(nodes, nodes >= self.minNodes))",
       "must be ascending and at least minNodes", "allowedNumNodes"},
      {"spec.elasticPolicy",
       "!has(self.allowedNumNodes) || size(self.allowedNumNodes) == 0 || self.nodeIncrementStep == "
       "1",
       "must be left out, as allowedNumNodes is given", "nodeIncrementStep"},
  };
}

std::vector<CelRule> policy_rules() {
  return {
      {"spec", "self.failurePolicy.backoff.initialSeconds <= self.failurePolicy.backoff.maxSeconds",
       "must be at most maxSeconds", "failurePolicy.backoff.initialSeconds"},
      {"spec.failurePolicy.rules.*",
       "has(self.onExitCodes) != (has(self.onPodConditions) && size(self.onPodConditions) > 0)",
       "must hold either onExitCodes or onPodConditions"},
      {"spec.failurePolicy.rules.*", "self.countTowardsMax || self.action == 'RestartJob'",
       "must be left out, as action is not RestartJob", "countTowardsMax"},
      {"spec.failurePolicy.rules.*.onExitCodes", "self.operator != 'In' || !(0 in self.values)",
       "must be failure codes, 1 to 255", "values"},
      {"spec", "self.progressPolicy.minStallSeconds <= self.progressPolicy.maxStallSeconds",
       "must be at most maxStallSeconds", "progressPolicy.minStallSeconds"},
      {"spec.checkpointPolicy",
       "!has(self.path) || !(self.path.startsWith('/') || self.path.matches('(^|/)[.][.](/|$)'))",
       "must be a relative path without ..", "path"},
      {"spec",
       "!has(self.checkpointPolicy.memoryEverySteps) || self.checkpointPolicy.memoryEverySteps == "
       "0 "
       "|| self.failurePolicy.restartStrategy == 'InPlace'",
       "must be 0, as only failurePolicy.restartStrategy InPlace resumes from memory",
       "checkpointPolicy.memoryEverySteps"},
      {"spec",
       "self.checkpointPolicy.memoryReplicas == 0 || self.failurePolicy.restartStrategy == "
       "'InPlace'",
       "must be 0, as only failurePolicy.restartStrategy InPlace resumes from memory",
       "checkpointPolicy.memoryReplicas"},
      {"spec",
       "self.checkpointPolicy.memoryReplicas == 0 || (has(self.engine) && self.numNodes > 1 && "
       "(!has(self.checkpointPolicy.memoryEverySteps) || "
       "self.checkpointPolicy.memoryEverySteps != 0))",
       "must be 0 without an engine, on one node, or if memoryEverySteps is 0",
       "checkpointPolicy.memoryReplicas"},
      {"spec", "self.spares.count == 0 || self.failurePolicy.restartStrategy == 'InPlace'",
       "must be 0, as only failurePolicy.restartStrategy InPlace promotes spares", "spares.count"},
      {"spec",
       "self.spares.count == 0 || has(self.engine) || (self.agent == 'Auto' && "
       "self.numProcPerNode != 1)",
       "must be 0, as these pods have no agent", "spares.count"},
      {"spec.successPolicy.rules.*",
       "(has(self.succeededIndexes) && self.succeededIndexes != '') || has(self.succeededCount)",
       "must hold succeededIndexes or succeededCount"},
      {"spec.scheduling", "self.provider != 'None' || !has(self.queue) || self.queue == ''",
       "must be left out, as provider is None", "queue"},
  };
}

/// `import` is a word of CEL: the field is written __import__ there.
std::vector<CelRule> engine_rules() {
  return {
      {"spec.engine.model", "!has(self.preset) || !has(self.__import__) || self.__import__ == ''",
       "must be left out, as import is given", "preset"},
      {"spec.engine.model",
       "has(self.preset) || (has(self.__import__) && self.__import__ != '') || (has(self.layers) "
       "&& "
       "has(self.hidden) && has(self.heads))",
       "must hold a preset, an import, or layers, hidden and heads"},
      {"spec.engine.model",
       "!has(self.hidden) || !has(self.heads) || self.hidden % self.heads == 0",
       "must be a multiple of heads", "hidden"},
      {"spec.engine",
       "!has(self.data.sequenceLength) || !has(self.model.maxPositions) || "
       "self.data.sequenceLength "
       "<= self.model.maxPositions",
       "must be at most model.maxPositions", "data.sequenceLength"},
      {"spec.engine", "self.learningRateSchedule.warmupSteps <= self.steps",
       "must be at most steps", "learningRateSchedule.warmupSteps"},
      {"spec.engine", "!has(self.precision.lossScale) || self.precision.compute == 'FP16'",
       "must be left out: only FP16 needs it", "precision.lossScale"},
      {"spec.engine", "!has(self.precision.reduce) || self.numerics.mode == 'Fast'",
       "must be left out: it needs numerics.mode Fast", "precision.reduce"},
      {"spec.engine", "!has(self.precision.reduce) || self.precision.reduce == 'FP32'",
       "must be FP32, the format of the gradients", "precision.reduce"},
      {"spec.engine", "self.numerics.mode != 'Fast' || self.device == 'Cuda'",
       "Fast runs only on GPUs: it needs device Cuda", "numerics.mode"},
      {"spec.engine", "!has(self.numerics.grainSequences) || self.numerics.mode != 'Fast'",
       "must be left out: Fast numerics round no sums", "numerics.grainSequences"},
      {"spec.engine", "!has(self.numerics.grainSequences) || self.device != 'Cpu'",
       "must be left out: device Cpu uses grainTokens", "numerics.grainSequences"},
      {"spec.engine",
       "!has(self.numerics.grainSequences) || self.batch.microSequences % "
       "self.numerics.grainSequences == 0",
       "must be a divisor of batch.microSequences", "numerics.grainSequences"},
      {"spec.engine",
       "self.data.documents == 'Join' || (self.parallelism.context == 1 && "
       "!self.parallelism.sequenceParallel)",
       "must be Join with parallelism.context above 1 or sequenceParallel", "data.documents"},
      {"spec.engine", "self.runtime.transport != 'Nccl' || self.device == 'Cuda'",
       "Nccl connects GPUs: it needs device Cuda", "runtime.transport"},
      {"spec.engine",
       "self.device != 'Cuda' || !has(self.numerics.grainTokens) || self.numerics.grainTokens == 0",
       "must be left out: device Cuda uses grainSequences", "numerics.grainTokens"},
      {"spec.engine",
       "self.device != 'Cuda' || !has(self.numerics.keyBlock) || self.numerics.keyBlock == 0",
       "must be left out: the attention of device Cuda has its own blocks", "numerics.keyBlock"},
      {"spec.engine",
       "self.numerics.mode != 'Fast' || !has(self.numerics.tensorChunks) || "
       "self.numerics.tensorChunks == 0",
       "must be left out: the sums of Fast numerics have no pieces", "numerics.tensorChunks"},
      {"spec.engine", "!has(self.model.heads) || self.model.heads % self.parallelism.tensor == 0",
       "must be a divisor of model.heads", "parallelism.tensor"},
      {"spec.engine",
       "!has(self.model.kvHeads) || self.model.kvHeads == 0 || "
       "self.model.kvHeads % self.parallelism.tensor == 0 || "
       "self.parallelism.tensor % self.model.kvHeads == 0",
       "must be a divisor of model.kvHeads, or a multiple of it", "parallelism.tensor"},
      {"spec.engine",
       "self.parallelism.context == 1 || !has(self.model.kvHeads) || self.model.kvHeads == 0 || "
       "self.model.kvHeads % self.parallelism.tensor == 0",
       "must be 1 if tensor ranks share model.kvHeads", "parallelism.context"},
      {"spec.engine",
       "self.device != 'Cuda' || !has(self.model.kvHeads) || self.model.kvHeads == 0 || "
       "self.model.kvHeads % self.parallelism.tensor == 0",
       "must be a divisor of model.kvHeads with device Cuda", "parallelism.tensor"},
      {"spec.engine",
       "self.device != 'Cuda' || self.numerics.mode == 'Fast' || self.parallelism.tensor == 1 || "
       "!has(self.model.family) || self.model.family != 'Qwen3'",
       "must be 1 with device Cuda for Qwen3, unless numerics.mode is Fast", "parallelism.tensor"},
      {"spec.engine",
       "self.device != 'Cuda' || self.numerics.mode == 'Fast' || "
       "!self.parallelism.sequenceParallel",
       "must be false with device Cuda, unless numerics.mode is Fast",
       "parallelism.sequenceParallel"},
      {"spec.engine",
       "self.parallelism.context == 1 || (has(self.parallelism.contextMode) && "
       "self.parallelism.contextMode == 'Ring') || "
       "!has(self.model.heads) || self.model.heads % "
       "(self.parallelism.tensor * self.parallelism.context) == 0",
       "must be a divisor of model.heads / parallelism.tensor, or contextMode must be Ring",
       "parallelism.context"},
      {"spec.engine",
       "self.parallelism.context == 1 || (has(self.parallelism.contextMode) && "
       "self.parallelism.contextMode == 'Ring') || "
       "!has(self.model.kvHeads) || self.model.kvHeads % "
       "(self.parallelism.tensor * self.parallelism.context) == 0",
       "must be a divisor of model.kvHeads / parallelism.tensor, or contextMode must be Ring",
       "parallelism.context"},
      {"spec.engine",
       "self.parallelism.context == 1 || !has(self.parallelism.contextMode) || "
       "self.parallelism.contextMode != 'Ring' || "
       "!has(self.model.slidingWindow) || self.model.slidingWindow == 0 || "
       "!has(self.data.sequenceLength) || self.model.slidingWindow >= self.data.sequenceLength",
       "must be Ulysses with a model.slidingWindow below data.sequenceLength",
       "parallelism.contextMode"},
      {"spec.engine",
       "self.device != 'Cuda' || self.parallelism.context == 1 || "
       "!has(self.parallelism.contextMode) || self.parallelism.contextMode != 'Ring'",
       "must be Ulysses with device Cuda", "parallelism.contextMode"},
      {"spec.engine",
       "self.device != 'Cuda' || self.numerics.mode == 'Fast' || self.parallelism.context == 1",
       "must be 1 with device Cuda, unless numerics.mode is Fast", "parallelism.context"},
      {"spec.engine",
       "!has(self.model.layers) || self.parallelism.pipeline * self.parallelism.chunksPerStage <= "
       "self.model.layers + 2",
       "times chunksPerStage must be at most model.layers + 2: embedding and head count as one "
       "each",
       "parallelism.pipeline"},
      {"spec.engine",
       "(self.parallelism.chunksPerStage > 1) == (self.parallelism.pipelineSchedule == "
       "'Interleaved')",
       "must be at least 2 under Interleaved, and 1 under any other schedule",
       "parallelism.chunksPerStage"},
      {"spec.engine.parallelism",
       "!has(self.stages) || size(self.stages) == 0 || size(self.stages) == self.pipeline * "
       "self.chunksPerStage",
       "must hold pipeline x chunksPerStage numbers", "stages"},
      {"spec.engine.parallelism",
       "!has(self.stages) || size(self.stages) < 3 || self.stages.filter(blocks, blocks == "
       "0).size() <= (self.stages[0] == 0 ? 1 : 0) + (self.stages[size(self.stages) - 1] == 0 ? 1 "
       ": 0)",
       "must be above 0 except the first and last", "stages"},
      {"spec.engine",
       "!has(self.model.layers) || !has(self.parallelism.stages) || "
       "size(self.parallelism.stages) == 0 || self.parallelism.stages.sum() == self.model.layers",
       "must add up to model.layers", "parallelism.stages"},
      {"spec.engine",
       "self.parallelism.mode != 'DataParallel' || !has(self.parallelism.zeroStage) || "
       "self.parallelism.zeroStage == 0",
       "must be 0 under mode DataParallel, where rank 0 holds all states", "parallelism.zeroStage"},
      {"spec.engine", "self.parallelism.mode != 'DataParallel' || self.parallelism.shard == 0",
       "must be 0 under mode DataParallel, where rank 0 holds all states", "parallelism.shard"},
      {"spec.engine",
       "self.parallelism.shard == 0 || !has(self.parallelism.zeroStage) || "
       "self.parallelism.zeroStage > 0",
       "must be 0 unless zeroStage is above 0", "parallelism.shard"},
      {"spec.engine",
       "self.parallelism.pipeline > 1 || "
       "!(self.parallelism.pipelineSchedule in ['Naive', 'GPipe', 'Interleaved', 'ZeroBubbleH1'])",
       "must be OneFOneB, as pipeline is 1", "parallelism.pipelineSchedule"},
      {"spec.engine", "!self.parallelism.sequenceParallel || self.parallelism.tensor > 1",
       "must be false, as tensor is 1", "parallelism.sequenceParallel"},
      {"spec.engine",
       "!has(self.numerics.tensorChunks) || (self.numerics.tensorChunks % self.parallelism.tensor "
       "== 0 && (self.numerics.tensorChunks > 0 || self.parallelism.tensor == 1))",
       "must be a multiple of parallelism.tensor, and 0 only if that is 1",
       "numerics.tensorChunks"},
      {"spec.engine",
       "self.parallelism.context == 1 || !has(self.numerics.grainTokens) || "
       "self.numerics.grainTokens == 0 || "
       "!has(self.data.sequenceLength) || self.data.sequenceLength % (2 * self.parallelism.context "
       "* self.numerics.grainTokens) == 0",
       "must divide data.sequenceLength / (2 x parallelism.context)", "numerics.grainTokens"},
      {"spec.engine",
       "self.parallelism.context == 1 || !has(self.parallelism.contextMode) || "
       "self.parallelism.contextMode != 'Ring' || "
       "!has(self.numerics.keyBlock) || self.numerics.keyBlock == 0 || "
       "!has(self.data.sequenceLength) || "
       "self.data.sequenceLength % (2 * self.parallelism.context * self.numerics.keyBlock) == 0",
       "must divide data.sequenceLength / (2 x parallelism.context) with contextMode Ring",
       "numerics.keyBlock"},
      {"spec.engine",
       "self.parallelism.context == 1 || !has(self.data.sequenceLength) || "
       "self.data.sequenceLength % (2 * self.parallelism.context) == 0",
       "must be a multiple of 2 x parallelism.context", "data.sequenceLength"},
      {"spec.engine",
       "!self.parallelism.sequenceParallel || !has(self.data.sequenceLength) || "
       "self.data.sequenceLength % (self.parallelism.tensor * (self.parallelism.context > 1 ? 2 * "
       "self.parallelism.context : 1)) == 0",
       "must be a multiple of parallelism.tensor, and of 2 x context x tensor if context is above "
       "1, with sequenceParallel",
       "data.sequenceLength"},
      {"spec.engine",
       "!self.parallelism.sequenceParallel || !has(self.numerics.grainTokens) || "
       "self.numerics.grainTokens == 0 || "
       "!has(self.data.sequenceLength) || self.data.sequenceLength % (self.parallelism.tensor * "
       "(self.parallelism.context > 1 ? 2 * self.parallelism.context : 1) * "
       "self.numerics.grainTokens) == 0",
       "must divide data.sequenceLength / parallelism.tensor, and / (2 x context x tensor) if "
       "context is above 1, with sequenceParallel",
       "numerics.grainTokens"},
      {"spec.engine",
       "self.evaluation.earlyStopPatience == 0 || (has(self.data.validation) && "
       "size(self.data.validation) > 0)",
       "must be 0, as no data.validation is given", "evaluation.earlyStopPatience"},
      {"spec.engine", "self.evaluation.earlyStopPatience == 0 || self.evaluation.everySteps > 0",
       "must be 0, as everySteps is 0 and the only evaluation follows the last step",
       "evaluation.earlyStopPatience"},
      {"spec.engine",
       "self.evaluation.earlyStopDelta == 0.0 || self.evaluation.earlyStopPatience > 0",
       "must be 0, as earlyStopPatience is 0 and nothing ends the run early",
       "evaluation.earlyStopDelta"},
  };
}

}  // namespace

std::vector<CelRule> value_rules() {
  std::vector<CelRule> rules = spec_rules();
  for (const auto& more : {policy_rules(), engine_rules()})
    rules.insert(rules.end(), more.begin(), more.end());
  return rules;
}

void apply_rules(Node& root) {
  for (const Pattern& entry : kPatterns)
    put(at(root, entry.path), "pattern", string_node(entry.pattern));
  for (const ListType& entry : kListTypes) {
    Node& list = at(root, entry.path);
    put(list, "x-kubernetes-list-type", string_node(entry.key.empty() ? "set" : "map"));
    if (entry.key.empty()) continue;
    put(list, "x-kubernetes-list-map-keys", list_node({string_node(entry.key)}));
  }
  Node& names = member(at(root, "spec.engine.model.preset"), "enum", Kind::kSequence);
  for (const Preset& preset : presets())
    names.items.push_back(string_node(preset.name));
  for (const auto& rules : {value_rules(), change_rules()}) {
    for (const CelRule& rule : rules)
      add_rule(root, rule);
  }
}

}  // namespace trainyard::api::schema

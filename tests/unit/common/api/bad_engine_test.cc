#include <gtest/gtest.h>

#include "tests/unit/common/api/bad_manifest.h"

namespace trainyard::api {
namespace {

// clang-format off
const BadManifest kBadEngines[] = {
    {6, R"(    model: {preset: gpt2-small})",
     R"(6: spec.engine.model.preset: found "gpt2-small", wanted gpt2-100k, gpt2-3m, gpt2-11m, gpt2-124m, gpt2-355m, gpt2-774m, gpt2-1558m, llama-1m, llama-160m or qwen2.5-1.5b)"},
    {6, R"(    model: {})",
     R"(6: spec.engine.model.layers: found nothing, wanted a value: give a preset, the shape (layers, hidden, heads) or import
6: spec.engine.model.hidden: found nothing, wanted a value: give a preset, the shape (layers, hidden, heads) or import
6: spec.engine.model.heads: found nothing, wanted a value: give a preset, the shape (layers, hidden, heads) or import)"},
    {6, R"(    model: {layers: 2, hidden: 64})",
     R"(6: spec.engine.model.heads: found nothing, wanted a value: give a preset, the shape (layers, hidden, heads) or import)"},
    {6, R"(    model: {layers: 2, hidden: 65, heads: 4, maxPositions: 8})",
     R"(6: spec.engine.model.hidden: found 65, wanted a multiple of heads (4))"},
    {6, R"(    model: {layers: 2, hidden: 64, heads: 4, kvHeads: 2, maxPositions: 8})",
     R"(6: spec.engine.model.kvHeads: found 2, wanted heads (4), as GPT2 has no grouped heads)"},
    {6, R"(    model: {layers: 2, hidden: 64, heads: 4})",
     R"(7: spec.engine.data.sequenceLength: found nothing, wanted a number of tokens, as model.maxPositions is not given either)"},
    {6, R"(    model: {layers: 2, hidden: 16777216, heads: 4, maxPositions: 8})",
     R"(6: spec.engine.model.hidden: found 16777216, wanted a number from 1 to 4194304)"},
    {6, R"(    model: {layers: 2, hidden: 9000000000000000000, heads: 4, maxPositions: 8})",
     R"(6: spec.engine.model.hidden: found 9000000000000000000, wanted a number from 1 to 4194304)"},
    {6, R"(    model: {preset: gpt2-3m, layers: 0})",
     R"(6: spec.engine.model.layers: found 0, wanted a whole number, at least 1)"},
    {6, R"(    model: {preset: gpt2-3m, dropout: 1})",
     R"(6: spec.engine.model.dropout: found 1, wanted a number at least 0 and below 1)"},
    {6, R"(    model: {preset: gpt2-3m, dropout: .5})",
     R"(6: spec.engine.model.dropout: found .5, wanted a plain decimal number such as 493 or 0.5, or quotes around it where it is text)"},
    {6, R"(    model: {preset: gpt2-3m, family: Bert})",
     R"(6: spec.engine.model.family: found Bert, wanted GPT2, Llama, Qwen2, Qwen3 or Mistral (not in this version))"},
    {6, R"(    model: {preset: gpt2-3m, tieEmbeddings: false})",
     R"(6: spec.engine.model.tieEmbeddings: found false, wanted true, as GPT2 ties them)"},
    {6, R"(    model: {preset: gpt2-3m, slidingWindow: 8})",
     R"(6: spec.engine.model.slidingWindow: found 8, wanted nothing, as GPT2 has no window)"},
    {6, R"(    model: {preset: llama-1m, family: Mistral, slidingWindow: 8, fullLayers: 1})",
     R"(6: spec.engine.model.fullLayers: found 1, wanted 0, as Mistral has no full layers)"},
    {6, R"(    model: {preset: llama-1m, family: Qwen2, fullLayers: 1})",
     R"(6: spec.engine.model.fullLayers: found 1, wanted 0, as there is no slidingWindow)"},
    {6, R"(    model: {preset: llama-1m, family: Qwen3, slidingWindow: 8, fullLayers: 5})",
     R"(6: spec.engine.model.fullLayers: found 5, wanted at most layers (4))"},
    {6, R"(    model: {preset: gpt2-3m, syncBatchNorm: true})",
     R"(6: spec.engine.model.syncBatchNorm: found an unknown key, wanted none: batch means would make the bits depend on how ranks and micro-batches divide the batch; every family normalizes each token alone (LayerNorm, RMSNorm))"},
    {6, R"(    model: {preset: gpt2-3m, import: hf})",
     R"(6: spec.engine.model.preset: found "gpt2-3m", wanted either preset or import)"},
    {7, R"(    data: {})",
     R"(7: spec.engine.data.tokens: found nothing, wanted a value: Token shards to train on, in order; `trainyard data prepare` creates them)"},
    {7, R"(    data: {tokens: []})",
     R"(7: spec.engine.data.tokens: found an empty list, wanted at least 1 item)"},
    {7, R"(    data: {tokens: [""]})",
     R"(7: spec.engine.data.tokens[0]: found "", wanted a value: Token shards to train on, in order; `trainyard data prepare` creates them)"},
    {7, R"(    data: {tokens: a.tokens})",
     R"(7: spec.engine.data.tokens: found "a.tokens", wanted a list)"},
    {7, R"(    data: {tokens: [a.tokens, ~]})",
     R"(7: spec.engine.data.tokens[1]: found nothing, wanted a value)"},
    {7, R"(    data: {tokens: [a.tokens], sequenceLength: 257})",
     R"(7: spec.engine.data.sequenceLength: found 257, wanted at most model.maxPositions (256))"},
    {8, R"(    batch: {globalSequences: 0})",
     R"(8: spec.engine.batch.globalSequences: found 0, wanted a number from 1 to 1000000000000)"},
    {8, R"(    batch: {microSequences: 1})",
     R"(8: spec.engine.batch.globalSequences: found nothing, wanted a value: Sequences per optimizer step over all ranks; independent of the number of ranks)"},
    {8, R"(    batch: {globalSequences: 8, microSequences: 0})",
     R"(8: spec.engine.batch.microSequences: found 0, wanted a number from 1 to 65536)"},
    {9, R"(    steps: 0)",
     R"(9: spec.engine.steps: found 0, wanted a number from 1 to 1000000000000)"},
    {9, R"(    steps: 1e3)",
     R"(9: spec.engine.steps: found 1e3, wanted a whole number)"},
    {9, R"(    stepz: 5)",
     R"(5: spec.engine.steps: found nothing, wanted a value: Optimizer steps of the whole run
9: spec.engine.stepz: found an unknown key, wanted steps)"},
    {kAppend, R"(    task: MaskedLM)",
     R"(10: spec.engine.task: found MaskedLM, wanted CausalLM (not in this version))"},
    {kAppend, R"(    optimizer: {name: Adam})",
     R"(10: spec.engine.optimizer.name: found "Adam", wanted AdamW)"},
    {kAppend, R"(    optimizer: {learningRate: 0})",
     R"(10: spec.engine.optimizer.learningRate: found 0, wanted a number above 0 and at most 1000)"},
    {kAppend, R"(    optimizer: {learningRate: 1e999})",
     R"(10: spec.engine.optimizer.learningRate: found 1e999, wanted a number that a double can hold)"},
    {kAppend, R"(    optimizer: {learningRate: .nan})",
     R"(10: spec.engine.optimizer.learningRate: found .nan, wanted a plain decimal number such as 493 or 0.5, or quotes around it where it is text)"},
    {kAppend, R"(    optimizer: {betas: [0.9]})",
     R"(10: spec.engine.optimizer.betas: found a list of 1, wanted a list of 2 numbers)"},
    {kAppend, R"(    optimizer: {betas: [0.9, 1]})",
     R"(10: spec.engine.optimizer.betas[1]: found 1, wanted a number at least 0 and below 1)"},
    {kAppend, R"(    optimizer: {epsilon: 0})",
     R"(10: spec.engine.optimizer.epsilon: found 0, wanted a number above 0 and at most 1)"},
    {kAppend, R"(    optimizer: {weightDecay: -0.1})",
     R"(10: spec.engine.optimizer.weightDecay: found -0.1, wanted a number from 0 to 1000)"},
    {kAppend, R"(    optimizer: {gradientClip: -1})",
     R"(10: spec.engine.optimizer.gradientClip: found -1, wanted a number at least 0)"},
    {kAppend, R"(    optimizer: {lr: 0.1})",
     R"(10: spec.engine.optimizer.lr: found an unknown key, wanted name, learningRate, betas, epsilon, weightDecay or gradientClip)"},
    {kAppend, R"(    learningRateSchedule: {name: WSD})",
     R"(10: spec.engine.learningRateSchedule.name: found WSD, wanted Cosine, Linear or Constant (not in this version))"},
    {kAppend, R"(    learningRateSchedule: {warmupSteps: 101})",
     R"(10: spec.engine.learningRateSchedule.warmupSteps: found 101, wanted at most steps (100))"},
    {kAppend, R"(    learningRateSchedule: {minRatio: 1.5})",
     R"(10: spec.engine.learningRateSchedule.minRatio: found 1.5, wanted a number from 0 to 1)"},
    {kAppend, R"(    precision: {compute: FP16})",
     R"(10: spec.engine.precision.compute: found FP16, wanted FP32 or BF16 (not in this version))"},
    {kAppend, R"(    precision: {compute: FP8})",
     R"(10: spec.engine.precision.compute: found FP8, wanted FP32 or BF16 (not in this version))"},
    {kAppend, R"(    precision: {compute: bf16})",
     R"(10: spec.engine.precision.compute: found "bf16", wanted FP32 or BF16)"},
    {kAppend, R"(    precision: {master: BF16})",
     R"(10: spec.engine.precision.master: found BF16, wanted FP32 (not in this version))"},
    {kAppend, R"(    precision: {lossScale: Dynamic})",
     R"(10: spec.engine.precision.lossScale: found Dynamic, wanted no loss scale with FP32: remove the key, only FP16 needs it)"},
    {kAppend, R"(    precision: {compute: FP16, lossScale: 3})",
     R"(10: spec.engine.precision.compute: found FP16, wanted FP32 or BF16 (not in this version)
10: spec.engine.precision.lossScale: found 3, wanted a power of two or Dynamic)"},
    {kAppend, R"(    precision: {reduce: BF16})",
     R"(10: spec.engine.precision.reduce: found BF16, wanted no reduce format with Auto numerics, whose exchange is exact: remove the key)"},
    {kAppend, R"(    parallelism: {tensor: 3})",
     R"(10: spec.engine.parallelism.tensor: found 3, wanted a divisor of model.heads (8): 1, 2, 4 or 8)"},
    {6, R"(    model: {family: Llama, layers: 2, hidden: 144, heads: 12, kvHeads: 4, maxPositions: 8}
    parallelism: {tensor: 3})",
     R"(7: spec.engine.parallelism.tensor: found 3, wanted a divisor of model.heads (12) whose ranks can share model.kvHeads (4): 1, 2, 4 or 12)"},
    {6, R"(    model: {family: Llama, layers: 2, hidden: 96, heads: 12, kvHeads: 4, headDim: 10, maxPositions: 8}
    parallelism: {tensor: 12})",
     R"(7: spec.engine.parallelism.tensor: found 12, wanted a divisor of model.heads (12) whose ranks can share model.kvHeads (4): 1, 2 or 4)"},
    {6, R"(    model: {family: Llama, layers: 2, hidden: 96, heads: 12, kvHeads: 2, maxPositions: 8}
    parallelism: {tensor: 4, context: 2, contextMode: Ring})",
     R"(7: spec.engine.parallelism.context: found 2, wanted 1, as tensor (4) ranks share model.kvHeads (2))"},
    {6, R"(    model: {family: Llama, layers: 2, hidden: 128, heads: 16, kvHeads: 2, maxPositions: 8}
    parallelism: {tensor: 4, context: 2})",
     R"(7: spec.engine.parallelism.context: found 2, wanted 1, as tensor (4) ranks share model.kvHeads (2))"},
    {6, R"(    model: {family: Llama, layers: 2, hidden: 96, heads: 12, kvHeads: 4, maxPositions: 2036}
    parallelism: {context: 2, contextMode: Ring})",
     R"(4: spec.numProcPerNode: found 1, wanted 2, for the ranks to be a multiple of context 2
5: spec.engine.numerics.keyBlock: found 0, wanted an explicit value with contextMode Ring, as the largest divisor up to 128 of data.sequenceLength (2036) / (2 x parallelism.context (2)) is 1, which makes attention slow; or a sequenceLength with a larger one)"},
    {kAppend, R"(    parallelism: {pipeline: 7})",
     R"(10: spec.engine.parallelism.pipeline: found 7, wanted at most 6 stages: embedding, head and model.layers (4))"},
    {kAppend, R"(    parallelism: {pipeline: 7, stages: [4]})",
     R"(10: spec.engine.parallelism.pipeline: found 7, wanted at most 6 stages: embedding, head and model.layers (4))"},
    {kAppend, R"(    parallelism: {pipeline: 2, stages: [4]})",
     R"(10: spec.engine.parallelism.stages: found 1 number, wanted 2, one per stage: pipeline x chunksPerStage)"},
    {kAppend, R"(    parallelism: {pipeline: 3, stages: [2, 2]})",
     R"(10: spec.engine.parallelism.stages: found 2 numbers, wanted 3, one per stage: pipeline x chunksPerStage)"},
    {kAppend, R"(    parallelism: {pipeline: 2, stages: [2, 3]})",
     R"(10: spec.engine.parallelism.stages: found numbers that add up to 5, wanted a sum of model.layers (4))"},
    {kAppend, R"(    parallelism: {pipeline: 3, stages: [4, 0, 0]})",
     R"(10: spec.engine.parallelism.stages[1]: found 0, wanted at least 1: only the first stage, which has the embedding, and the last, which has the head, may have none)"},
    {kAppend, R"(    parallelism: {pipeline: 2, stages: [5, -1]})",
     R"(10: spec.engine.parallelism.stages[1]: found -1, wanted a number from 0 to 4096)"},
    {kAppend, R"(    parallelism: {expert: 2})",
     R"(10: spec.engine.parallelism.expert: found 2, wanted 1 (not in this version))"},
    {kAppend, R"(    parallelism: {zeroStage: 0, shard: 2})",
     R"(10: spec.engine.parallelism.shard: found 2, wanted 0 unless zeroStage is above 0)"},
    {kAppend, R"(    parallelism: {zeroStage: 100000000000000000000})",
     R"(10: spec.engine.parallelism.zeroStage: found 100000000000000000000, wanted a whole number from 0 to 3)"},
    {kAppend, R"(    seed: 99999999999999999999)",
     R"(10: spec.engine.seed: found 99999999999999999999, wanted a whole number from 0 to 9223372036854775807)"},
    {kAppend, R"(    parallelism: {zeroStage: 4})",
     R"(10: spec.engine.parallelism.zeroStage: found 4, wanted a number from 0 to 3)"},
    {kAppend, R"(    parallelism: {mode: DataParallel, zeroStage: 1})",
     R"(10: spec.engine.parallelism.zeroStage: found 1, wanted 0 under mode DataParallel, where rank 0 holds all states)"},
    {kAppend, R"(    parallelism: {mode: DataParallel, shard: 2})",
     R"(10: spec.engine.parallelism.shard: found 2, wanted 0 under mode DataParallel, where rank 0 holds all states)"},
    {kAppend, R"(    parallelism: {mode: 7, shard: 2, zeroStage: 0})",
     R"(10: spec.engine.parallelism.mode: found 7, wanted Distributed or DataParallel)"},
    {kAppend, R"(    parallelism: {pipelineSchedule: PipeDream})",
     R"(10: spec.engine.parallelism.pipelineSchedule: found PipeDream, wanted Naive, GPipe, OneFOneB, Interleaved or ZeroBubbleH1 (not in this version))"},
    {kAppend, R"(    parallelism: {pipelineSchedule: GPipe})",
     R"(10: spec.engine.parallelism.pipelineSchedule: found GPipe, wanted OneFOneB, as pipeline is 1)"},
    {kAppend, R"(    parallelism: {chunksPerStage: 2})",
     R"(10: spec.engine.parallelism.chunksPerStage: found 2, wanted 1, as pipelineSchedule is not Interleaved)"},
    {kAppend, R"(    parallelism: {pipeline: 2, pipelineSchedule: Interleaved})",
     R"(10: spec.engine.parallelism.chunksPerStage: found 1, wanted at least 2 under Interleaved)"},
    {kAppend, R"(    parallelism: {pipelineSchedule: Interleaved, chunksPerStage: 2})",
     R"(10: spec.engine.parallelism.pipelineSchedule: found Interleaved, wanted OneFOneB, as pipeline is 1)"},
    {kAppend, R"(    parallelism: {pipeline: 2, pipelineSchedule: Interleaved, chunksPerStage: 4})",
     R"(10: spec.engine.parallelism.pipeline: found 2 x chunksPerStage 4, wanted at most 6 stages: embedding, head and model.layers (4))"},
    {kAppend, R"(    parallelism: {recompute: Some})",
     R"(10: spec.engine.parallelism.recompute: found "Some", wanted None, Selective or Full)"},
    {kAppend, R"(    parallelism: {sequenceParallel: true})",
     R"(10: spec.engine.parallelism.sequenceParallel: found true, wanted false, as tensor is 1)"},
    {7, R"(    data: {tokens: [a.tokens], documents: Isolate}
    parallelism: {tensor: 2, sequenceParallel: true})",
     R"(4: spec.numProcPerNode: found 1, wanted 2, for the ranks to be a multiple of tensor 2
7: spec.engine.data.documents: found Isolate, wanted Join with parallelism.context above 1 or sequenceParallel, whose ranks divide sequences)"},
    {7, R"(    data: {tokens: [a.tokens], sequenceLength: 63}
    parallelism: {tensor: 2, sequenceParallel: true})",
     R"(4: spec.numProcPerNode: found 1, wanted 2, for the ranks to be a multiple of tensor 2
7: spec.engine.data.sequenceLength: found 63, wanted a multiple of parallelism.tensor (2) with sequenceParallel, such as 62 or 64)"},
    {7, R"(    data: {tokens: [a.tokens], sequenceLength: 64}
    parallelism: {tensor: 2, sequenceParallel: true}
    numerics: {grainTokens: 24})",
     R"(4: spec.numProcPerNode: found 1, wanted 2, for the ranks to be a multiple of tensor 2
9: spec.engine.numerics.grainTokens: found 24, wanted a divisor of data.sequenceLength (64) / parallelism.tensor (2) with sequenceParallel, such as 16 or 32; it never changes: set it from the start if the run may have sequenceParallel or more tensor ranks later)"},
    {7, R"(    data: {tokens: [a.tokens], documents: Isolate}
    parallelism: {context: 2})",
     R"(4: spec.numProcPerNode: found 1, wanted 2, for the ranks to be a multiple of context 2
7: spec.engine.data.documents: found Isolate, wanted Join with parallelism.context above 1 or sequenceParallel, whose ranks divide sequences)"},
    {7, R"(    data: {tokens: [a.tokens], sequenceLength: 62}
    parallelism: {context: 2})",
     R"(4: spec.numProcPerNode: found 1, wanted 2, for the ranks to be a multiple of context 2
7: spec.engine.data.sequenceLength: found 62, wanted a multiple of 2 x parallelism.context (2), such as 60 or 64)"},
    {7, R"(    data: {tokens: [a.tokens], sequenceLength: 60}
    parallelism: {context: 2, tensor: 2, sequenceParallel: true})",
     R"(4: spec.numProcPerNode: found 1, wanted 4, for the ranks to be a multiple of tensor 2 x context 2
7: spec.engine.data.sequenceLength: found 60, wanted a multiple of 2 x parallelism.context (2) x parallelism.tensor (2) with sequenceParallel, such as 56 or 64)"},
    {7, R"(    data: {tokens: [a.tokens], sequenceLength: 64}
    parallelism: {context: 2, tensor: 2, sequenceParallel: true}
    numerics: {grainTokens: 16})",
     R"(4: spec.numProcPerNode: found 1, wanted 4, for the ranks to be a multiple of tensor 2 x context 2
9: spec.engine.numerics.grainTokens: found 16, wanted a divisor of data.sequenceLength (64) / (2 x parallelism.context (2) x parallelism.tensor (2) with sequenceParallel), such as 8; it never changes: set it from the start if the run may have sequenceParallel or more tensor ranks or context ranks later)"},
    {kAppend, R"(    parallelism: {context: 16})",
     R"(10: spec.engine.parallelism.context: found 16, wanted a divisor of model.heads (8): 1, 2, 4 or 8; or contextMode Ring, which divides no heads)"},
    {kAppend, R"(    parallelism: {context: 8, tensor: 2})",
     R"(10: spec.engine.parallelism.context: found 8, wanted a divisor of model.heads (8) / tensor (2): 1, 2 or 4; or contextMode Ring, which divides no heads)"},
    {kAppend, R"(    parallelism: {context: 2}
    device: Cuda)",
     R"(10: spec.engine.parallelism.context: found 2, wanted 1 with device Cuda and Canonical numerics, whose grains are whole sequences: use numerics.mode Fast, or device Cpu)"},
    {kAppend, R"(    parallelism: {context: 2, contextMode: Ring}
    numerics: {mode: Fast}
    device: Cuda)",
     R"(10: spec.engine.parallelism.contextMode: found Ring, wanted Ulysses with device Cuda, which has no ring attention; or device Cpu)"},
    {7, R"(    data: {tokens: [a.tokens], documents: Apart})",
     R"(7: spec.engine.data.documents: found "Apart", wanted Join or Isolate)"},
    {7, R"(    data: {tokens: [a.tokens], sequenceLength: 96}
    parallelism: {context: 3, contextMode: Ring}
    numerics: {keyBlock: 12})",
     R"(4: spec.numProcPerNode: found 1, wanted 3, for the ranks to be a multiple of context 3
9: spec.engine.numerics.keyBlock: found 12, wanted a divisor of data.sequenceLength (96) / (2 x parallelism.context (3)) with contextMode Ring, such as 8 or 16; it never changes: set it from the start if the run may have a ring later)"},
    {6, R"(    model: {preset: llama-1m, family: Mistral, slidingWindow: 8}
    parallelism: {context: 2, contextMode: Ring})",
     R"(7: spec.engine.parallelism.contextMode: found Ring, wanted Ulysses, as model.slidingWindow (8) is less than data.sequenceLength (256): the ranks of a ring would have unequal parts)"},
    {kAppend, R"(    parallelism: {ringOrder: [1, 0, 1]})",
     R"(10: spec.engine.parallelism.ringOrder: found rank 1 twice, wanted each rank at most once)"},
    {kAppend, R"(    parallelism: {offload: [Optimizer]})",
     R"(10: spec.engine.parallelism.offload: found a list, wanted an empty list (not in this version))"},
    {kAppend, R"(    numerics: {mode: Fast})",
     R"(10: spec.engine.numerics.mode: found Fast, wanted Auto or Canonical without device Cuda: Fast runs only on GPUs)"},
    {kAppend, R"(    device: Auto
    numerics: {mode: Fast})",
     R"(11: spec.engine.numerics.mode: found Fast, wanted Auto or Canonical without device Cuda: Fast runs only on GPUs)"},
    {kAppend, R"(    device: Cuda
    numerics: {mode: Fast, grainSequences: 1})",
     R"(11: spec.engine.numerics.grainSequences: found 1, wanted none with Fast numerics, which round no sums: remove the key)"},
    {kAppend, R"(    device: Cuda
    precision: {reduce: BF16}
    numerics: {mode: Fast})",
     R"(11: spec.engine.precision.reduce: found BF16, wanted FP32, the format of the gradients (others not in this version))"},
    {kAppend, R"(    numerics: {grainTokens: -1})",
     R"(10: spec.engine.numerics.grainTokens: found -1, wanted a number from 0 to 65536)"},
    {kAppend, R"(    numerics: {keyBlock: 65537})",
     R"(10: spec.engine.numerics.keyBlock: found 65537, wanted a number from 0 to 65536)"},
    {kAppend, R"(    numerics: {tensorChunks: heads})",
     R"(10: spec.engine.numerics.tensorChunks: found "heads", wanted a whole number)"},
    {kAppend, R"(    numerics: {tensorChunk: 4})",
     R"(10: spec.engine.numerics.tensorChunk: found an unknown key, wanted tensorChunks)"},
    {kAppend, R"(    numerics: {grainSequences: 1}
    device: Cpu)",
     R"(10: spec.engine.numerics.grainSequences: found 1, wanted none with device Cpu, which uses grainTokens: remove the key)"},
    {kAppend, R"(    numerics: {grainSequences: 3})",
     R"(10: spec.engine.numerics.grainSequences: found 3, wanted a divisor of batch.microSequences (1))"},
    {kAppend, R"(    numerics: {grainTokens: 64}
    device: Cuda)",
     R"(10: spec.engine.numerics.grainTokens: found 64, wanted none with device Cuda, which uses grainSequences: remove the key)"},
    {kAppend, R"(    numerics: {keyBlock: 64}
    device: Cuda)",
     R"(10: spec.engine.numerics.keyBlock: found 64, wanted none with device Cuda, whose attention has its own blocks: remove the key)"},
    {kAppend, R"(    numerics: {mode: Fast, tensorChunks: 12}
    device: Cuda)",
     R"(10: spec.engine.numerics.tensorChunks: found 12, wanted none with Fast numerics, whose sums have no pieces: remove the key)"},
    {6, R"(    model: {preset: llama-1m, family: Qwen3}
    parallelism: {tensor: 2}
    device: Cuda)",
     R"(7: spec.engine.parallelism.tensor: found 2, wanted 1 with device Cuda and Canonical numerics for Qwen3, whose head norms are one sum over all heads: use numerics.mode Fast, or device Cpu)"},
    {6, R"(    model: {preset: llama-1m}
    parallelism: {tensor: 4}
    device: Cuda)",
     R"(7: spec.engine.parallelism.tensor: found 4, wanted a divisor of model.kvHeads (2) with device Cuda, whose ranks share no key-value heads; or device Cpu)"},
    {kAppend, R"(    parallelism: {tensor: 2, sequenceParallel: true}
    device: Cuda)",
     R"(10: spec.engine.parallelism.sequenceParallel: found true, wanted false with device Cuda and Canonical numerics, whose grains are whole sequences: use numerics.mode Fast, or device Cpu)"},
    {kAppend, R"(    device: Gpu)",
     R"(10: spec.engine.device: found "Gpu", wanted Auto, Cpu or Cuda)"},
    {kAppend, R"(    seed: -1)",
     R"(10: spec.engine.seed: found -1, wanted a number at least 0)"},
    {kAppend, R"(    runtime: {transport: Nccl})",
     R"(10: spec.engine.runtime.transport: found Nccl, wanted Auto, Shm or Tcp without device Cuda: NCCL connects only GPUs)"},
    {kAppend, R"(    runtime: {isa: Sse})",
     R"(10: spec.engine.runtime.isa: found "Sse", wanted Auto, Amx, Avx512Bf16, Avx512, Avx2 or Generic)"},
    {kAppend, R"(    runtime: {threads: -1})",
     R"(10: spec.engine.runtime.threads: found -1, wanted a number from 0 to 1024)"},
    {kAppend, R"(    evaluation: {sequences: 0})",
     R"(10: spec.engine.evaluation.sequences: found 0, wanted a number from 1 to 1000000000000)"},
    {kAppend, R"(    evaluation: {earlyStopPatience: 3})",
     R"(10: spec.engine.evaluation.earlyStopPatience: found 3, wanted 0, as no data.validation is given)"},
    {kAppend, R"(    evaluation: {earlyStopDelta: 0.5})",
     R"(10: spec.engine.evaluation.earlyStopDelta: found 0.5, wanted 0, as earlyStopPatience is 0 and nothing ends the run early)"},
    {kAppend, R"(    export: model)",
     R"(10: spec.engine.export: found "model", wanted a mapping)"},
    {kAppend, R"(    steps: 7)",
     R"(10: spec.engine.steps: found a second key "steps", wanted each key once (the first is on line 9))"},
    {kAppend, R"(    ? [a]
    : b)",
     R"(10: spec.engine: found a collection as a key, wanted a text key (or is a bracket not closed?))"},
    {kAppend, R"(    <<: {seed: 1})",
     R"(10: spec.engine: found the merge key <<, wanted the members written out)"},
    {kAppend, R"(    seed: !!int 5)",
     R"(10: spec.engine.seed: found the tag "tag:yaml.org,2002:int", wanted a value without a tag)"},
    {kAppend, R"(    on: 5)",
     R"(10: spec.engine.on: found the key on, wanted a text key: put it in quotes)"},
    {kAppend, R"(	seed: 5)",
     R"(10: wanted valid YAML: illegal tab when looking for indentation)"},
};
// clang-format on

TEST(BadEngineTest, NameLineFieldFoundAndWanted) {
  for (const BadManifest& bad : kBadEngines) {
    EXPECT_EQ(faults_of(bad), bad.faults) << "line " << bad.line << ": " << bad.text;
  }
}

}  // namespace
}  // namespace trainyard::api

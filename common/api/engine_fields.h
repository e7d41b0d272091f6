#pragma once

#include "common/api/engine_spec.h"
#include "common/api/field.h"
#include "common/api/model_fields.h"

/// The field tables of `engine`; see field.h.
namespace trainyard::api {

inline constexpr double kMaxCount = 1'000'000'000'000;  // of steps, sequences: beyond any run

template <class V, Is<DataSpec> S>
void visit_fields(V& visit, S& data) {
  visit({.name = "tokens",
         .description = "Token shards to train on, in order; made by `trainyard data prepare`.",
         .need = Need::kRequired,
         .content = Content::kPath},
        data.tokens);
  visit({.name = "validation",
         .description = "Token shards held out for evaluation.",
         .default_note = "no evaluation",
         .content = Content::kPath},
        data.validation);
  visit({.name = "sequenceLength",
         .description = "Tokens of one sequence; at most model.maxPositions.",
         .minimum = 1,
         .maximum = kMaxSize,
         .zero = Zero::kAbsent,
         .default_note = "model.maxPositions"},
        data.sequence_length);
  visit({.name = "documents",
         .description = "What tokens see of the other documents in their sequence: Join: all "
                        "before them; Isolate: nothing, and positions begin anew.",
         .unwritten_zero = true},
        data.documents);
  visit({.name = "tokenizer",
         .description = "Tokenizer folder or file. Checkpoints name it, and `trainyard sample` "
                        "looks there where it is told no other; training does without.",
         .default_note = "none",
         .content = Content::kPath},
        data.tokenizer);
}

template <class V, Is<BatchSpec> S>
void visit_fields(V& visit, S& batch) {
  visit({.name = "globalSequences",
         .description =
             "Sequences of one optimizer step over all ranks; the same at any number of ranks.",
         .need = Need::kRequired,
         .minimum = 1,
         .maximum = kMaxCount},
        batch.global_sequences);
  visit({.name = "microSequences",
         .description = "Sequences a rank computes at once; the last micro-batch may be short.",
         .minimum = 1,
         .maximum = 65536},
        batch.micro_sequences);
}

template <class V, Is<OptimizerSpec> S>
void visit_fields(V& visit, S& optimizer) {
  visit({.name = "name", .description = "The update rule."}, optimizer.name);
  visit({.name = "learningRate", .description = "Peak learning rate.", .maximum = 1000, .above = 0},
        optimizer.learning_rate);
  visit({.name = "betas",
         .description = "Decay of the two moment averages.",
         .minimum = 0,
         .below = 1},
        optimizer.betas);
  visit({.name = "epsilon",
         .description = "Added to the denominator of the update.",
         .maximum = 1,
         .above = 0},
        optimizer.epsilon);
  visit({.name = "weightDecay",
         .description = "Decoupled weight decay, of matrices only.",
         .minimum = 0,
         .maximum = 1000},
        optimizer.weight_decay);
  visit({.name = "gradientClip",
         .description = "Largest global gradient norm; 0 turns clipping off.",
         .minimum = 0},
        optimizer.gradient_clip);
}

template <class V, Is<LearningRateSchedule> S>
void visit_fields(V& visit, S& schedule) {
  visit({.name = "name", .description = "The shape of the learning rate after warm-up."},
        schedule.name);
  visit({.name = "warmupSteps",
         .description = "Steps over which the learning rate rises linearly to its peak.",
         .minimum = 0,
         .maximum = kMaxCount},
        schedule.warmup_steps);
  visit(
      {.name = "horizonSteps",
       .description =
           "Steps over which the learning rate falls, counted from the first; after them it stays "
           "at its last value. 0 means steps. State it where a run may be made longer later.",
       .minimum = 0,
       .maximum = kMaxCount,
       .unwritten_zero = true},
      schedule.horizon_steps);
  visit({.name = "minRatio",
         .description = "The learning rate after horizonSteps as a part of the peak.",
         .minimum = 0,
         .maximum = 1},
        schedule.min_ratio);
}

template <class V, Is<PrecisionSpec> S>
void visit_fields(V& visit, S& precision) {
  visit({.name = "compute", .description = "Format of activations and matrix products."},
        precision.compute);
  visit({.name = "master",
         .description = "Format of the weights that the optimizer updates.",
         .planned = true},
        precision.master);
  visit({.name = "lossScale",
         .description = "Factor on the loss, a power of two, or Dynamic; only with FP16.",
         .minimum = 1,
         .zero_word = "Dynamic",
         .default_note = "Dynamic with FP16"},
        precision.loss_scale);
  visit({.name = "reduce",
         .description = "Format in which gradients are exchanged; only with Fast numerics.",
         .default_note = "the format of the gradients"},
        precision.reduce);
}

template <class V, Is<ParallelismSpec> S>
void visit_fields(V& visit, S& parallelism) {
  visit({.name = "mode",
         .description = "How ranks divide the work. Under DataParallel the data rank 0 gathers the "
                        "gradients, updates the parameters and broadcasts them."},
        parallelism.mode);
  visit(
      {.name = "tensor",
       .description =
           "Ranks that share every layer, the vocabulary and the loss, by heads: a divisor of "
           "model.heads and, on several nodes, of numProcPerNode, that divides model.kvHeads or is "
           "a multiple of it whose quotient divides model.headDim; ranks that are more share these "
           "heads. With Canonical numerics and one numerics.tensorChunks no value changes the "
           "bits. With device Cuda it divides model.kvHeads, and Qwen3 needs numerics.mode Fast "
           "for more than 1.",
       .minimum = 1,
       .maximum = 65536},
      parallelism.tensor);
  visit({.name = "pipeline",
         .description = "Stages the layers are divided into.",
         .minimum = 1,
         .maximum = 65536},
        parallelism.pipeline);
  visit({.name = "context",
         .description =
             "Ranks that share every sequence: each has its positions of all activations, so that "
             "a sequence may be longer than what one rank has memory for. 2 x context divides "
             "data.sequenceLength, and tensor x context, but for contextMode Ring, model.heads and "
             "model.kvHeads; it is 1 where tensor ranks share these. Under one "
             "numerics.grainTokens and keyBlock no value changes the bits. With device Cuda it "
             "needs contextMode Ulysses and numerics.mode Fast, whose bits it changes.",
         .minimum = 1,
         .maximum = 65536},
        parallelism.context);
  visit({.name = "expert",
         .description = "Ranks that share the experts of a layer.",
         .minimum = 1,
         .maximum = 65536,
         .planned = true},
        parallelism.expert);
  visit({.name = "shard",
         .description =
             "Ranks that share out the states of zeroStage; 0 means all data-parallel ranks. An "
             "elastic job shares them among the largest divisor of its ranks that is at most this.",
         .minimum = 0,
         .maximum = 65536},
        parallelism.shard);
  visit({.name = "zeroStage",
         .description = "States that the ranks of `shard` share out: 0 none, 1 the optimizer's, 2 "
                        "also the gradients, 3 also the parameters. No stage changes the bits.",
         .minimum = 0,
         .maximum = 3,
         .default_note = "1, and 0 under mode DataParallel"},
        parallelism.zero_stage);
  visit({.name = "pipelineSchedule",
         .description = "Order of forward and backward passes over the stages."},
        parallelism.pipeline_schedule);
  visit({.name = "chunksPerStage",
         .description = "Stages of each rank of a pipeline, 2 or more under Interleaved: the "
                        "layers are divided into pipeline x chunksPerStage stages.",
         .minimum = 1,
         .maximum = 1024},
        parallelism.chunks_per_stage);
  visit(
      {.name = "stages",
       .description = "Transformer blocks of each stage: pipeline x chunksPerStage numbers that "
                      "add up to model.layers. The embedding belongs to the first stage, the head "
                      "to the last; only these two may have 0 blocks. No cut changes the bits.",
       .minimum = 0,
       .maximum = kMaxLayers,
       .default_note = "such that the stage that costs most costs least"},
      parallelism.stages);
  visit({.name = "recompute",
         .description = "Activations computed again in the backward pass instead of kept: "
                        "Selective, those of norms and GELU; Full, all but the inputs of layers."},
        parallelism.recompute);
  visit(
      {.name = "sequenceParallel",
       .description =
           "Share out what tensor ranks would have all of, norms, dropout and the residual stream, "
           "by slices of each sequence: activations take less memory. More is sent: what the "
           "backward pass gathers again, and once a step gradients of what each of these ranks has "
           "whole. tensor divides data.sequenceLength, with context ranks 2 x context x tensor. "
           "With device Cuda it needs numerics.mode Fast."},
      parallelism.sequence_parallel);
  visit({.name = "contextMode",
         .description =
             "How context ranks bring the positions of a sequence together in attention. Ulysses: "
             "each gets all positions of its part of the heads. Ring: each has all heads of two "
             "blocks of positions, and is handed the keys and values of the others block by block; "
             "numerics.keyBlock divides sequenceLength / (2 x context), and a slidingWindow is not "
             "below sequenceLength. On processors neither changes the bits. Device Cuda takes "
             "Ulysses.",
         .default_note = "Ulysses",
         .unwritten_zero = true},
        parallelism.context_mode);
  visit({.name = "ringOrder",
         .description = "In what order the rings of collectives go round the ranks, each named at "
                        "most once; ranks that are not named follow ascending, ranks outside the "
                        "world are left out. Results do not depend on it.",
         .minimum = 0,
         .maximum = 65534,
         .default_note = "ascending"},
        parallelism.ring_order);
  visit({.name = "offload",
         .description = "States kept in host memory between their uses.",
         .max_items = 3,
         .planned = true},
        parallelism.offload);
}

template <class V, Is<NumericsSpec> S>
void visit_fields(V& visit, S& numerics) {
  visit({.name = "mode",
         .description =
             "Canonical gives the same bits at every layout. Fast sums gradients in fp32 and lets "
             "libraries choose the order, with device Cuda alone: the same bits from run to run of "
             "one layout. A run on GPUs keeps its mode. Auto is Canonical."},
        numerics.mode);
  visit({.name = "grainTokens",
         .description = "Tokens of a sequence whose contributions to a weight's gradient are added "
                        "in fp32 before the exact sum; part of what the bits depend on. 0 means "
                        "the value of the checkpoint that the run goes on from; in a new run all "
                        "of a sequence up to 1024 tokens, and with context ranks the largest "
                        "divisor up to 1024 of half of the positions that each has (sequenceLength "
                        "/ (2 x context)), which it must divide; with sequenceParallel the same of "
                        "the slices that tensor ranks have of these (sequenceLength / tensor).",
         .minimum = 0,
         .maximum = 65536,
         .default_note = "0",
         .unwritten_zero = true},
        numerics.grain_tokens);
  visit({.name = "keyBlock",
         .description =
             "Positions that attention takes at once, of keys and of queries in dK and dV; part of "
             "what the bits depend on. CPUs take up to 256. 0 means the value of the checkpoint "
             "that the run goes on from, in a new run 128, with contextMode Ring the largest "
             "divisor up to 128 of sequenceLength / (2 x context), which it must divide.",
         .minimum = 0,
         .maximum = 65536,
         .default_note = "0",
         .unwritten_zero = true},
        numerics.key_block);
  visit(
      {.name = "tensorChunks",
       .description = "Pieces into which the sums are cut that tensor ranks can share, and the "
                      "vocabulary of the loss: a multiple of parallelism.tensor; 0 cuts none and "
                      "needs tensor 1. Part of what the bits depend on, so a run that is to have "
                      "more tensor ranks later names it (say, model.heads) from the start. On "
                      "GPUs each piece is a product of its own, and pieces are multiples of 8 "
                      "columns: take the most tensor ranks there will be. Fast numerics take "
                      "none.",
       .minimum = 0,
       .maximum = 65536,
       .default_note = "that of the checkpoint that the run goes on from; in a new run 0, and "
                       "where parallelism.tensor is above 1 model.heads, with device Cuda tensor"},
      numerics.tensor_chunks);
  visit({.name = "grainSequences",
         .description = "On GPUs, in place of grainTokens: sequences whose contributions are added "
                        "in fp32 before the exact sum; a divisor of batch.microSequences.",
         .minimum = 1,
         .maximum = 65536,
         .zero = Zero::kAbsent,
         .default_note =
             "that of the checkpoint that the run goes on from; in a new run batch.microSequences"},
        numerics.grain_sequences);
}

template <class V, Is<RuntimeSpec> S>
void visit_fields(V& visit, S& runtime) {
  visit({.name = "threads",
         .description = "Threads of a rank; 0 means the cores that a node's ranks may use (CPU "
                        "limits counted), divided by them.",
         .minimum = 0,
         .maximum = 1024},
        runtime.threads);
  visit({.name = "transport",
         .description = "How ranks exchange data; Auto takes shared memory on one host, else TCP. "
                        "Nccl, with device Cuda and several ranks: what a step exchanges goes from "
                        "GPU to GPU, the rest as with Auto."},
        runtime.transport);
  visit({.name = "isa",
         .description = "CPU instruction set; Auto takes the fastest that the processor has. "
                        "Avx512 does without AVX-512 BF16. All give the same bits."},
        runtime.isa);
  visit({.name = "memoryCheck",
         .description = "What happens to a job whose memory plan exceeds what its machine or pod "
                        "has: Refuse does not start it, Warn starts it with a warning."},
        runtime.memory_check);
}

template <class V, Is<EvaluationSpec> S>
void visit_fields(V& visit, S& evaluation) {
  visit({.name = "everySteps",
         .description = "Steps between evaluations; 0 means only after the last step.",
         .minimum = 0,
         .maximum = kMaxCount},
        evaluation.every_steps);
  visit({.name = "sequences",
         .description = "Sequences of the validation data that one evaluation reads.",
         .minimum = 1,
         .maximum = kMaxCount},
        evaluation.sequences);
  visit({.name = "earlyStopPatience",
         .description = "Evaluations in a row without a lower validation loss after which the run "
                        "ends; 0 turns this off. Where it is on, an evaluation with the lowest "
                        "loss is followed by a checkpoint, which is kept beside the newest ones.",
         .minimum = 0,
         .maximum = kMaxCount},
        evaluation.early_stop_patience);
  visit({.name = "earlyStopDelta",
         .description = "By how much a validation loss must be below the lowest one before to "
                        "count as lower, nats per token.",
         .minimum = 0,
         .maximum = 1000,
         .unwritten_zero = true},
        evaluation.early_stop_delta);
}

template <class V, Is<StartFrom> S>
void visit_fields(V& visit, S& start) {
  visit({.name = "checkpoint",
         .description = "The directory of one checkpoint (`g2-step-0000000100`) of another run.",
         .need = Need::kRequired,
         .content = Content::kPath},
        start.checkpoint);
  visit({.name = "what",
         .description = "State goes on from it: weights, moments, step and data position; model, "
                        "data, batch, seed and numerics must be its own. Weights takes the weights "
                        "alone, and begins with step 0."},
        start.what);
}

template <class V, Is<ExportSpec> S>
void visit_fields(V& visit, S& export_to) {
  visit({.name = "huggingFace",
         .description = "Folder in which a complete run leaves the model as Hugging Face reads it.",
         .default_note = "no export",
         .content = Content::kPath},
        export_to.hugging_face);
}

template <class V, Is<EngineSpec> S>
void visit_fields(V& visit, S& engine) {
  visit({.name = "task", .description = "What the model is trained for."}, engine.task);
  visit({.name = "model", .description = "The model's shape.", .need = Need::kRequired},
        engine.model);
  visit({.name = "data", .description = "What is trained on.", .need = Need::kRequired},
        engine.data);
  visit({.name = "batch", .description = "Batch sizes.", .need = Need::kRequired}, engine.batch);
  visit({.name = "steps",
         .description = "Optimizer steps of the whole run.",
         .need = Need::kRequired,
         .minimum = 1,
         .maximum = kMaxCount},
        engine.steps);
  visit({.name = "startFrom",
         .description =
             "A checkpoint of another run in which this one begins; beside it model.import tells "
             "the shape alone. Once the run has a checkpoint of its own, that one may be gone.",
         .default_note = "fresh weights, or those of model.import"},
        engine.start_from);
  visit({.name = "optimizer", .description = "The optimizer."}, engine.optimizer);
  visit({.name = "learningRateSchedule", .description = "The learning rate over the steps."},
        engine.learning_rate_schedule);
  visit({.name = "precision", .description = "Number formats."}, engine.precision);
  visit({.name = "parallelism", .description = "How the work is divided over ranks."},
        engine.parallelism);
  visit({.name = "numerics", .description = "Which bits are promised."}, engine.numerics);
  visit({.name = "device",
         .description = "What ranks compute on; part of what the bits depend on. Auto is what the "
                        "run has been on so far; in a new run an NVIDIA GPU where every rank finds "
                        "one, else the processor.",
         .unwritten_zero = true},
        engine.device);
  visit({.name = "seed", .description = "Seed of every random number of the run.", .minimum = 0},
        engine.seed);
  visit({.name = "runtime",
         .description = "How it runs; may change at any restart and changes no bit."},
        engine.runtime);
  visit({.name = "evaluation", .description = "Loss on the validation data."}, engine.evaluation);
  visit({.name = "export", .description = "What a complete run leaves beside its checkpoints."},
        engine.export_to);
}

}  // namespace trainyard::api

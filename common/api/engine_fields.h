#pragma once

#include "common/api/engine_spec.h"
#include "common/api/field.h"
#include "common/api/model_fields.h"

/// The field tables of `engine`; see field.h.
namespace trainyard::api {

inline constexpr double kMaxCount = 1'000'000'000'000;  // of steps, sequences: beyond any run

template <class V, Is<DataSpec> S>
void visit_fields(V& visit, S& data) {
  visit(
      {.name = "tokens",
       .description = "Token shards to train on, in order; `trainyard data prepare` creates them.",
       .need = Need::kRequired,
       .content = Content::kPath},
      data.tokens);
  visit({.name = "validation",
         .description = "Token shards held out for evaluation.",
         .default_note = "no evaluation",
         .content = Content::kPath},
        data.validation);
  visit({.name = "sequenceLength",
         .description = "Tokens per sequence; at most model.maxPositions.",
         .minimum = 1,
         .maximum = kMaxSize,
         .zero = Zero::kAbsent,
         .default_note = "model.maxPositions"},
        data.sequence_length);
  visit({.name = "documents",
         .description = "Attention across the documents of a sequence. Join: tokens attend to all "
                        "earlier documents. Isolate: tokens attend only to their own document, and "
                        "positions start at 0 again in each document.",
         .unwritten_zero = true},
        data.documents);
  visit({.name = "tokenizer",
         .description = "Tokenizer folder or file. Checkpoints record it, and `trainyard sample` "
                        "uses it unless given another; training does not need it.",
         .default_note = "none",
         .content = Content::kPath},
        data.tokenizer);
}

template <class V, Is<BatchSpec> S>
void visit_fields(V& visit, S& batch) {
  visit({.name = "globalSequences",
         .description =
             "Sequences per optimizer step over all ranks; independent of the number of ranks.",
         .need = Need::kRequired,
         .minimum = 1,
         .maximum = kMaxCount},
        batch.global_sequences);
  visit({.name = "microSequences",
         .description =
             "Sequences that a rank computes at once; the last micro-batch may be smaller.",
         .minimum = 1,
         .maximum = 65536},
        batch.micro_sequences);
}

template <class V, Is<OptimizerSpec> S>
void visit_fields(V& visit, S& optimizer) {
  visit({.name = "name", .description = "Update rule."}, optimizer.name);
  visit({.name = "learningRate", .description = "Peak learning rate.", .maximum = 1000, .above = 0},
        optimizer.learning_rate);
  visit({.name = "betas",
         .description = "Decay rates of the two moment averages.",
         .minimum = 0,
         .below = 1},
        optimizer.betas);
  visit({.name = "epsilon",
         .description = "Constant added to the denominator of the update.",
         .maximum = 1,
         .above = 0},
        optimizer.epsilon);
  visit({.name = "weightDecay",
         .description = "Decoupled weight decay; applies to matrices only.",
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
  visit({.name = "name", .description = "Shape of the learning rate after warm-up."},
        schedule.name);
  visit({.name = "warmupSteps",
         .description = "Steps over which the learning rate rises linearly to its peak.",
         .minimum = 0,
         .maximum = kMaxCount},
        schedule.warmup_steps);
  visit({.name = "horizonSteps",
         .description = "Steps over which the learning rate falls, counted from the first step; "
                        "afterwards it stays at its last value. 0 means the value of steps. Set it "
                        "if the run may be extended later.",
         .minimum = 0,
         .maximum = kMaxCount,
         .unwritten_zero = true},
        schedule.horizon_steps);
  visit({.name = "minRatio",
         .description = "Learning rate after horizonSteps, as a fraction of the peak.",
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
         .description = "Factor on the loss: a power of two, or Dynamic; only with FP16.",
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
         .description = "Division of the work among ranks. Under DataParallel, data rank 0 gathers "
                        "the gradients, updates the parameters and broadcasts them."},
        parallelism.mode);
  visit({.name = "tensor",
         .description =
             "Ranks that share every layer (by heads), the vocabulary and the loss: a divisor of "
             "model.heads and, on several nodes, of numProcPerNode. It divides model.kvHeads, or "
             "is a multiple of it whose quotient divides model.headDim; several ranks then share "
             "each key-value head. With Canonical numerics and the same numerics.tensorChunks, no "
             "value changes the bits. With device Cuda it divides model.kvHeads, and Qwen3 needs "
             "numerics.mode Fast for more than 1.",
         .minimum = 1,
         .maximum = 65536},
        parallelism.tensor);
  visit({.name = "pipeline",
         .description =
             "Ranks of a pipeline; the layers are divided into pipeline x chunksPerStage stages.",
         .minimum = 1,
         .maximum = 65536},
        parallelism.pipeline);
  visit(
      {.name = "context",
       .description =
           "Ranks that divide every sequence. Each rank holds the activations of its own "
           "positions, so a sequence may need more memory than one rank has. 2 x context divides "
           "data.sequenceLength. Unless contextMode is Ring, tensor x context divides model.heads "
           "and model.kvHeads. It is 1 if tensor ranks share key-value heads. With the same "
           "numerics.grainTokens and keyBlock, no value changes the bits. With device Cuda it "
           "needs contextMode Ulysses and numerics.mode Fast, and its value changes the bits.",
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
         .description = "Ranks among which the states of zeroStage are sharded; 0 means all "
                        "data-parallel ranks. An elastic job uses the largest divisor of its "
                        "data-parallel ranks that is at most this value.",
         .minimum = 0,
         .maximum = 65536},
        parallelism.shard);
  visit({.name = "zeroStage",
         .description = "States sharded among the ranks of `shard`: 0 none, 1 the optimizer's, 2 "
                        "also the gradients, 3 also the parameters. No stage changes the bits.",
         .minimum = 0,
         .maximum = 3,
         .default_note = "1, or 0 under mode DataParallel"},
        parallelism.zero_stage);
  visit({.name = "pipelineSchedule",
         .description = "Order of forward and backward passes over the stages."},
        parallelism.pipeline_schedule);
  visit({.name = "chunksPerStage",
         .description = "Stages per rank of a pipeline; 2 or more under Interleaved, otherwise 1. "
                        "The layers are divided into pipeline x chunksPerStage stages.",
         .minimum = 1,
         .maximum = 1024},
        parallelism.chunks_per_stage);
  visit(
      {.name = "stages",
       .description = "Transformer blocks per stage: pipeline x chunksPerStage numbers that add up "
                      "to model.layers. The first stage also has the embedding and the last stage "
                      "the head; only these two may have 0 blocks. No division changes the bits.",
       .minimum = 0,
       .maximum = kMaxLayers,
       .default_note = "the division whose most expensive stage costs least"},
      parallelism.stages);
  visit(
      {.name = "recompute",
       .description = "Activations that the backward pass recomputes instead of keeping them. "
                      "Selective: those of norms and GELU. Full: all except the inputs of layers."},
      parallelism.recompute);
  visit(
      {.name = "sequenceParallel",
       .description =
           "Divide norms, dropout and the residual stream among tensor ranks by slices of each "
           "sequence, so that activations take less memory. Ranks send more data: activations that "
           "the backward pass gathers again and, once per step, gradients of parameters that each "
           "tensor rank holds whole. tensor divides data.sequenceLength; with context ranks, 2 x "
           "context x tensor divides it. With device Cuda it needs numerics.mode Fast."},
      parallelism.sequence_parallel);
  visit({.name = "contextMode",
         .description =
             "Method by which attention combines the positions of context ranks. Ulysses: each "
             "rank gets all positions of its share of the heads. Ring: each rank has all heads of "
             "two blocks of positions and receives the keys and values of the other ranks block by "
             "block. With Ring, numerics.keyBlock divides sequenceLength / (2 x context), and "
             "slidingWindow is at least sequenceLength. On CPUs neither method changes the bits. "
             "Device Cuda supports only Ulysses.",
         .default_note = "Ulysses",
         .unwritten_zero = true},
        parallelism.context_mode);
  visit({.name = "ringOrder",
         .description = "Order of the ranks in the rings of collectives, each rank at most once. "
                        "Unlisted ranks follow in ascending order; ranks outside the world are "
                        "ignored. Results do not depend on it.",
         .minimum = 0,
         .maximum = 65534,
         .default_note = "ascending"},
        parallelism.ring_order);
  visit({.name = "offload",
         .description = "States kept in host memory while they are not in use.",
         .max_items = 3,
         .planned = true},
        parallelism.offload);
}

template <class V, Is<NumericsSpec> S>
void visit_fields(V& visit, S& numerics) {
  visit({.name = "mode",
         .description = "Method of summation. Canonical gives the same bits at every layout. Fast "
                        "sums gradients in fp32 in an order that libraries choose, and needs "
                        "device Cuda. It gives the same bits from run to run of one layout. A run "
                        "on GPUs keeps its mode. Auto means Canonical."},
        numerics.mode);
  visit(
      {.name = "grainTokens",
       .description =
           "Tokens of a sequence whose contributions to a weight's gradient are added in fp32 "
           "before the exact sum; the bits depend on it. 0 means the value of the checkpoint from "
           "which the run resumes; in a new run, sequenceLength or 1024, whichever is smaller. "
           "With context ranks it divides sequenceLength / (2 x context), with sequenceParallel "
           "sequenceLength / tensor, and with both sequenceLength / (2 x context x tensor). In "
           "these cases 0 in a new run means the largest such divisor up to 1024.",
       .minimum = 0,
       .maximum = 65536,
       .default_note = "0",
       .unwritten_zero = true},
      numerics.grain_tokens);
  visit({.name = "keyBlock",
         .description = "Positions that attention processes at once: of keys, and of queries in dK "
                        "and dV. The bits depend on it. CPUs support up to 256. 0 means the value "
                        "of the checkpoint from which the run resumes; in a new run, 128. With "
                        "contextMode Ring it divides sequenceLength / (2 x context), and 0 in a "
                        "new run means the largest such divisor up to 128.",
         .minimum = 0,
         .maximum = 65536,
         .default_note = "0",
         .unwritten_zero = true},
        numerics.key_block);
  visit({.name = "tensorChunks",
         .description =
             "Pieces into which the vocabulary of the loss and the sums that tensor ranks can "
             "share are divided: a multiple of parallelism.tensor. 0 divides nothing and needs "
             "tensor 1. The bits depend on it: if the run may have more tensor ranks later, set it "
             "from the start, for example to model.heads. On GPUs each piece is a separate matrix "
             "product, and its columns are a multiple of 8. There, use the largest number of "
             "tensor ranks that you plan. Leave it out with Fast numerics.",
         .minimum = 0,
         .maximum = 65536,
         .default_note = "that of the checkpoint from which the run resumes; in a new run 0 or, if "
                         "parallelism.tensor is above 1, model.heads (tensor with device Cuda)"},
        numerics.tensor_chunks);
  visit(
      {.name = "grainSequences",
       .description = "Sequences whose contributions are added in fp32 before the exact sum; "
                      "replaces grainTokens on GPUs. A divisor of batch.microSequences.",
       .minimum = 1,
       .maximum = 65536,
       .zero = Zero::kAbsent,
       .default_note =
           "that of the checkpoint from which the run resumes; in a new run batch.microSequences"},
      numerics.grain_sequences);
}

template <class V, Is<RuntimeSpec> S>
void visit_fields(V& visit, S& runtime) {
  visit({.name = "threads",
         .description = "Threads per rank; 0 means the cores that the ranks of a node may use "
                        "(within CPU limits), divided by the number of these ranks.",
         .minimum = 0,
         .maximum = 1024},
        runtime.threads);
  visit({.name = "transport",
         .description = "Transport by which ranks exchange data. Auto uses shared memory on one "
                        "host, else TCP. Nccl needs device Cuda and several ranks: the data of a "
                        "step goes from GPU to GPU, other data as with Auto."},
        runtime.transport);
  visit({.name = "isa",
         .description = "CPU instruction set. Auto uses the fastest that the CPU supports. Avx512 "
                        "does not use AVX-512 BF16. All give the same bits."},
        runtime.isa);
  visit({.name = "memoryCheck",
         .description = "Action for a job whose memory plan exceeds the memory of its machine or "
                        "pod. Refuse does not start it; Warn starts it with a warning."},
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
         .description = "Sequences of the validation data per evaluation.",
         .minimum = 1,
         .maximum = kMaxCount},
        evaluation.sequences);
  visit({.name = "earlyStopPatience",
         .description =
             "Consecutive evaluations without a lower validation loss after which the run ends; 0 "
             "turns early stopping off. With early stopping, a checkpoint follows each evaluation "
             "with the lowest loss so far and is kept in addition to the newest ones.",
         .minimum = 0,
         .maximum = kMaxCount},
        evaluation.early_stop_patience);
  visit({.name = "earlyStopDelta",
         .description = "Amount by which a validation loss must be below the lowest previous loss "
                        "to count as lower, in nats per token.",
         .minimum = 0,
         .maximum = 1000,
         .unwritten_zero = true},
        evaluation.early_stop_delta);
}

template <class V, Is<StartFrom> S>
void visit_fields(V& visit, S& start) {
  visit({.name = "checkpoint",
         .description = "Directory of one checkpoint (`g2-step-0000000100`) of another run.",
         .need = Need::kRequired,
         .content = Content::kPath},
        start.checkpoint);
  visit(
      {.name = "what",
       .description = "Parts of the checkpoint that the run uses. State resumes weights, moments, "
                      "step and data position; model, data, batch, seed and numerics must be those "
                      "of the checkpoint. Weights loads only the weights and starts at step 0."},
      start.what);
}

template <class V, Is<ExportSpec> S>
void visit_fields(V& visit, S& export_to) {
  visit(
      {.name = "huggingFace",
       .description = "Folder to which a complete run writes the model in the Hugging Face format.",
       .default_note = "no export",
       .content = Content::kPath},
      export_to.hugging_face);
}

template <class V, Is<EngineSpec> S>
void visit_fields(V& visit, S& engine) {
  visit({.name = "task", .description = "Task for which the model is trained."}, engine.task);
  visit({.name = "model", .description = "Shape of the model.", .need = Need::kRequired},
        engine.model);
  visit({.name = "data", .description = "Training and validation data.", .need = Need::kRequired},
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
             "Checkpoint of another run from which this run starts; model.import then gives only "
             "the shape. Once this run has its own checkpoint, the other may be deleted.",
         .default_note = "fresh weights, or those of model.import"},
        engine.start_from);
  visit({.name = "optimizer", .description = "Optimizer settings."}, engine.optimizer);
  visit({.name = "learningRateSchedule", .description = "Learning rate over the steps."},
        engine.learning_rate_schedule);
  visit({.name = "precision", .description = "Number formats."}, engine.precision);
  visit({.name = "parallelism", .description = "Division of the work among ranks."},
        engine.parallelism);
  visit({.name = "numerics", .description = "Guarantees about the bits of results."},
        engine.numerics);
  visit({.name = "device",
         .description = "Device on which ranks compute; the bits depend on it. Auto means the "
                        "device that the run has used so far. In a new run it means an NVIDIA GPU "
                        "if every rank finds one, else the CPU.",
         .unwritten_zero = true},
        engine.device);
  visit({.name = "seed", .description = "Seed of all random numbers of the run.", .minimum = 0},
        engine.seed);
  visit({.name = "runtime",
         .description = "Runtime settings, which may change at any restart and change no bits."},
        engine.runtime);
  visit({.name = "evaluation", .description = "Evaluation of the loss on the validation data."},
        engine.evaluation);
  visit(
      {.name = "export", .description = "Output of a complete run in addition to its checkpoints."},
      engine.export_to);
}

}  // namespace trainyard::api

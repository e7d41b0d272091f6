#pragma once

#include "common/api/engine_spec.h"
#include "common/api/field.h"

/// The field tables of `engine`; see field.h.
namespace trainyard::api {

inline constexpr double kMaxSize = 1 << 24;  // of a model dimension: beyond any model
inline constexpr double kMaxLayers = 4096;
inline constexpr double kMaxHeads = 4096;
/// Width of the feed-forward layer by that of the residual stream, where it is not given (Vaswani
/// et al. 2017, section 3.3, and every GPT-2).
inline constexpr int64_t kFfnRatio = 4;
/// So that what is derived of it stays within kMaxSize.
inline constexpr double kMaxHidden = kMaxSize / static_cast<double>(kFfnRatio);
inline constexpr double kMaxCount = 1'000'000'000'000;  // of steps, sequences: beyond any run

template <class V, Is<ModelSpec> S>
void visit_fields(V& visit, S& model) {
  visit(
      {.name = "preset",
       .description = "A known shape by name; other keys of `model` override single values of it."},
      model.preset);
  visit({.name = "family",
         .description = "The architecture.",
         .default_note = "the preset's, else GPT2"},
        model.family);
  visit({.name = "layers",
         .description = "Transformer blocks.",
         .minimum = 1,
         .maximum = kMaxLayers,
         .zero = Zero::kAbsent,
         .default_note = "from preset or import"},
        model.layers);
  visit({.name = "hidden",
         .description = "Width of the residual stream, in elements; a multiple of heads.",
         .minimum = 1,
         .maximum = kMaxHidden,
         .zero = Zero::kAbsent,
         .default_note = "from preset or import"},
        model.hidden);
  visit({.name = "heads",
         .description = "Attention heads.",
         .minimum = 1,
         .maximum = kMaxHeads,
         .zero = Zero::kAbsent,
         .default_note = "from preset or import"},
        model.heads);
  visit({.name = "kvHeads",
         .description = "Key and value heads; a divisor of heads. GPT2 has as many as heads.",
         .minimum = 1,
         .maximum = kMaxHeads,
         .zero = Zero::kAbsent,
         .default_note = "heads"},
        model.kv_heads);
  visit({.name = "ffn",
         .description = "Width of the feed-forward layer, in elements.",
         .minimum = 1,
         .maximum = kMaxSize,
         .zero = Zero::kAbsent,
         .default_note = "4 x hidden"},
        model.ffn);
  visit(
      {.name = "vocab",
       .description = "Vocabulary size, in tokens. Left out, the worker takes that in the headers "
                      "of the token shards.",
       .minimum = 1,
       .maximum = kMaxSize,
       .zero = Zero::kAbsent,
       .default_note = "from preset, import or data"},
      model.vocab);
  visit({.name = "maxPositions",
         .description = "Positions the model has embeddings for, in tokens.",
         .minimum = 1,
         .maximum = kMaxSize,
         .zero = Zero::kAbsent,
         .default_note = "from preset or import, else data.sequenceLength"},
        model.max_positions);
  visit({.name = "tieEmbeddings",
         .description = "Use the token embedding as the output projection as well.",
         .planned = true},
        model.tie_embeddings);
  visit({.name = "dropout",
         .description = "Probability with which an activation is dropped in training.",
         .minimum = 0,
         .below = 1},
        model.dropout);
  visit({.name = "layerNormEpsilon",
         .description = "Added to the variance in layer normalization.",
         .minimum = 0,
         .below = 1,
         .default_note = "from import, else 0.00001"},
        model.layer_norm_epsilon);
  visit({.name = "import",
         .description = "A Hugging Face folder (config.json and safetensors) whose shape and "
                        "weights the run starts from; excludes preset, and shape keys must agree. "
                        "Once there is a checkpoint it may be gone.",
         .default_note = "fresh weights",
         .content = Content::kPath},
        model.import_path);
}

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
  visit(
      {.name = "tokenizer",
       .description = "Tokenizer folder or file. Checkpoints name it, and `trainyard sample` looks "
                      "there where it is told no other; training does without.",
       .default_note = "none",
       .content = Content::kPath},
      data.tokenizer);
}

template <class V, Is<BatchSpec> S>
void visit_fields(V& visit, S& batch) {
  visit({.name = "globalSequences",
         .description = "Sequences of one optimizer step over all ranks; the same at any number of "
                        "ranks.",
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
  visit({.name = "horizonSteps",
         .description = "Steps over which the learning rate falls, counted from the first; after "
                        "them it stays at its last value. 0 means steps. State it where a run may "
                        "be made longer later.",
         .minimum = 0,
         .maximum = kMaxCount},
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
  visit({.name = "tensor",
         .description = "Ranks that share every layer; a divisor of model.heads.",
         .minimum = 1,
         .maximum = 65536,
         .planned = true},
        parallelism.tensor);
  visit({.name = "pipeline",
         .description = "Stages the layers are divided into.",
         .minimum = 1,
         .maximum = 65536},
        parallelism.pipeline);
  visit({.name = "context",
         .description = "Ranks that share every sequence.",
         .minimum = 1,
         .maximum = 65536,
         .planned = true},
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
         .description =
             "States that the ranks of `shard` share out: 0 none, 1 the optimizer's, 2 also the "
             "gradients, 3 also the parameters. No stage changes the bits.",
         .minimum = 0,
         .maximum = 3,
         .default_note = "1, and 0 under mode DataParallel"},
        parallelism.zero_stage);
  visit({.name = "pipelineSchedule",
         .description = "Order of forward and backward passes over the stages."},
        parallelism.pipeline_schedule);
  visit({.name = "chunksPerStage",
         .description =
             "Stages of each rank of a pipeline, 2 or more under Interleaved: the layers are "
             "divided into pipeline x chunksPerStage stages.",
         .minimum = 1,
         .maximum = 1024},
        parallelism.chunks_per_stage);
  visit({.name = "stages",
         .description =
             "Transformer blocks of each stage: pipeline x chunksPerStage numbers that add up to "
             "model.layers. The embedding belongs to the first stage, the head to the last; only "
             "these two may have 0 blocks. No cut changes the bits.",
         .minimum = 0,
         .maximum = kMaxLayers,
         .default_note = "such that the stage that costs most costs least"},
        parallelism.stages);
  visit({.name = "recompute",
         .description = "Activations computed again in the backward pass instead of kept: "
                        "Selective, those of norms and GELU; Full, all but the inputs of layers."},
        parallelism.recompute);
  visit({.name = "sequenceParallel",
         .description = "Divide what tensor parallelism replicates along the sequence.",
         .planned = true},
        parallelism.sequence_parallel);
  visit({.name = "contextMode", .description = "How a sequence is divided over a context group."},
        parallelism.context_mode);
  visit({.name = "ringOrder",
         .description =
             "In what order the rings of collectives go round the ranks, each named at most once; "
             "ranks that are not named follow ascending, ranks outside the world are left "
             "out. Results do not depend on it.",
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
         .description = "Canonical gives the same bits at every layout, Fast the library's order; "
                        "Auto is Canonical on CPUs and Fast on GPUs."},
        numerics.mode);
  visit(
      {.name = "grainTokens",
       .description = "Tokens whose contributions are added in fp32 before the exact sum; part of "
                      "what the bits depend on.",
       .minimum = 1,
       .maximum = 65536},
      numerics.grain_tokens);
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
         .description = "How ranks exchange data; Auto takes shared memory on one host, else TCP."},
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
         .description = "Evaluations without improvement after which the run ends; 0 turns this "
                        "off.",
         .minimum = 0,
         .maximum = kMaxCount,
         .planned = true},
        evaluation.early_stop_patience);
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
         .description = "A checkpoint of another run in which this one begins; beside it "
                        "model.import tells the shape alone. Once the run has a checkpoint of its "
                        "own, that one may be gone.",
         .default_note = "fresh weights, or those of model.import"},
        engine.start_from);
  visit({.name = "optimizer", .description = "The optimizer."}, engine.optimizer);
  visit({.name = "learningRateSchedule", .description = "The learning rate over the steps."},
        engine.learning_rate_schedule);
  visit({.name = "precision", .description = "Number formats."}, engine.precision);
  visit({.name = "parallelism", .description = "How the work is divided over ranks."},
        engine.parallelism);
  visit({.name = "numerics", .description = "Which bits are promised."}, engine.numerics);
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

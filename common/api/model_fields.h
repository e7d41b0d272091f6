#pragma once

#include "common/api/engine_spec.h"
#include "common/api/field.h"

/// The field tables of `engine.model`; see field.h.
namespace trainyard::api {

inline constexpr double kMaxSize = 1 << 24;  // of a model dimension: beyond any model
inline constexpr double kMaxLayers = 4096;
inline constexpr double kMaxHeads = 4096;
/// Width of the feed-forward layer by that of the residual stream, where it is not given (Vaswani
/// et al. 2017, section 3.3, and every GPT-2).
inline constexpr int64_t kFfnRatio = 4;
/// So that what is derived of it stays within kMaxSize.
inline constexpr double kMaxHidden = kMaxSize / static_cast<double>(kFfnRatio);
inline constexpr double kMaxFactor = 1e12;  // of rotary positions

template <class V, Is<RopeScaling> S>
void visit_fields(V& visit, S& scaling) {
  visit({.name = "type",
         .description = "Linear slows all pairs down; Llama3 those that turn seldom; Yarn goes "
                        "over from one to the other by how often a pair turns.",
         .need = Need::kRequired},
        scaling.type);
  visit({.name = "factor",
         .description = "Positions of the model by those before.",
         .need = Need::kRequired,
         .minimum = 1,
         .maximum = kMaxFactor},
        scaling.factor);
  visit(
      {.name = "lowFrequencyFactor",
       .description = "Llama3: pairs that turn less often over originalPositions are slowed down.",
       .minimum = 0,
       .maximum = kMaxFactor},
      scaling.low_frequency_factor);
  visit({.name = "highFrequencyFactor",
         .description = "Llama3: pairs that turn more often over originalPositions are left alone.",
         .minimum = 0,
         .maximum = kMaxFactor},
        scaling.high_frequency_factor);
  visit({.name = "originalPositions",
         .description = "Llama3 and Yarn: positions that the model was first trained on.",
         .minimum = 1,
         .maximum = kMaxSize,
         .zero = Zero::kAbsent,
         .default_note = "required by Llama3 and Yarn"},
        scaling.original_positions);
  visit({.name = "betaFast",
         .description = "Yarn: pairs that turn more often over originalPositions are left alone.",
         .minimum = 0,
         .maximum = kMaxFactor},
        scaling.beta_fast);
  visit({.name = "betaSlow",
         .description = "Yarn: pairs that turn less often over originalPositions are slowed down.",
         .minimum = 0,
         .maximum = kMaxFactor},
        scaling.beta_slow);
  visit({.name = "attentionFactor",
         .description = "Yarn: multiplies what is turned.",
         .minimum = 0,
         .maximum = kMaxFactor,
         .default_note = "0.1 ln(factor) + 1"},
        scaling.attention_factor);
  visit({.name = "truncate", .description = "Yarn: round the bounds to whole pairs."},
        scaling.truncate);
}

template <class V, Is<ModelSpec> S>
void visit_fields(V& visit, S& model) {  // NOLINT(readability-function-size): a list of fields
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
         .description =
             "Width of the residual stream, in elements; without headDim, a multiple of heads.",
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
  visit({.name = "headDim",
         .description = "Features of a head. GPT2 has hidden / heads.",
         .minimum = 1,
         .maximum = kMaxSize,
         .zero = Zero::kAbsent,
         .default_note = "hidden / heads"},
        model.head_dim);
  visit({.name = "ffn",
         .description = "Width of the feed-forward layer, in elements.",
         .minimum = 1,
         .maximum = kMaxSize,
         .zero = Zero::kAbsent,
         .default_note = "4 x hidden; where gated 8/3 of it, up to a multiple of 64"},
        model.ffn);
  visit({.name = "vocab",
         .description = "Vocabulary size, in tokens. Left out, the worker takes that in the "
                        "headers of the token shards.",
         .minimum = 1,
         .maximum = kMaxSize,
         .zero = Zero::kAbsent,
         .default_note = "from preset, import or data"},
        model.vocab);
  visit({.name = "maxPositions",
         .description = "Positions of the model, in tokens.",
         .minimum = 1,
         .maximum = kMaxSize,
         .zero = Zero::kAbsent,
         .default_note = "from preset or import, else data.sequenceLength"},
        model.max_positions);
  visit({.name = "tieEmbeddings",
         .description = "Use the token embedding as the output projection as well. GPT2 does."},
        model.tie_embeddings);
  visit({.name = "dropout",
         .description = "Probability with which an activation is dropped in training; other "
                        "families than GPT2 drop attention alone.",
         .minimum = 0,
         .below = 1},
        model.dropout);
  visit({.name = "attentionBias",
         .description = "Biases of queries, keys, values and attention's output; Llama and Qwen3.",
         .default_note = "from import, else false"},
        model.attention_bias);
  visit({.name = "ffnBias",
         .description = "Biases of the feed-forward layer; Llama.",
         .default_note = "from import, else false"},
        model.ffn_bias);
  visit({.name = "ropeTheta",
         .description = "Base of rotary positions; not GPT2, which learns its positions.",
         .minimum = 1,
         .maximum = kMaxFactor,
         .default_note = "from preset or import, else 10000"},
        model.rope_theta);
  visit({.name = "ropeScaling",
         .description =
             "How rotary positions are stretched over more than the model was first trained on.",
         .default_note = "from import, else none"},
        model.rope_scaling);
  visit({.name = "slidingWindow",
         .description =
             "Keys that a query sees: its own and those right before it. Mistral, Qwen2 and Qwen3.",
         .minimum = 1,
         .maximum = kMaxSize,
         .zero = Zero::kAbsent,
         .default_note = "from import, else all before it"},
        model.sliding_window);
  visit({.name = "fullLayers",
         .description = "Blocks, from the first on, whose queries see all before them despite "
                        "slidingWindow. Qwen2 and Qwen3.",
         .minimum = 0,
         .maximum = kMaxLayers,
         .default_note = "from import, else 0",
         .unwritten_zero = true},
        model.full_layers);
  visit({.name = "layerNormEpsilon",
         .description = "Added to the variance, or mean of squares, in normalization.",
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

}  // namespace trainyard::api

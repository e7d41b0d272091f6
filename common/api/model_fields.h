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
         .description = "Scaling method. Linear slows down all pairs; Llama3 slows down pairs that "
                        "rotate rarely; Yarn interpolates between unchanged and slowed pairs by "
                        "how often a pair rotates.",
         .need = Need::kRequired},
        scaling.type);
  visit({.name = "factor",
         .description = "Ratio of the model's positions to those of its first training.",
         .need = Need::kRequired,
         .minimum = 1,
         .maximum = kMaxFactor},
        scaling.factor);
  visit(
      {.name = "lowFrequencyFactor",
       .description = "Llama3: rotations over originalPositions below which pairs are slowed down.",
       .minimum = 0,
       .maximum = kMaxFactor},
      scaling.low_frequency_factor);
  visit({.name = "highFrequencyFactor",
         .description =
             "Llama3: rotations over originalPositions above which pairs are left unchanged.",
         .minimum = 0,
         .maximum = kMaxFactor},
        scaling.high_frequency_factor);
  visit({.name = "originalPositions",
         .description = "Llama3 and Yarn: positions of the model's first training.",
         .minimum = 1,
         .maximum = kMaxSize,
         .zero = Zero::kAbsent,
         .default_note = "required by Llama3 and Yarn"},
        scaling.original_positions);
  visit({.name = "betaFast",
         .description =
             "Yarn: rotations over originalPositions above which pairs are left unchanged.",
         .minimum = 0,
         .maximum = kMaxFactor},
        scaling.beta_fast);
  visit({.name = "betaSlow",
         .description = "Yarn: rotations over originalPositions below which pairs are slowed down.",
         .minimum = 0,
         .maximum = kMaxFactor},
        scaling.beta_slow);
  visit({.name = "attentionFactor",
         .description = "Yarn: factor on the rotated queries and keys.",
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
       .description = "Name of a known shape; other keys of `model` override single values of it."},
      model.preset);
  visit(
      {.name = "family", .description = "Architecture.", .default_note = "the preset's, else GPT2"},
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
         .description = "Key and value heads: a divisor of heads, and equal to heads for GPT2.",
         .minimum = 1,
         .maximum = kMaxHeads,
         .zero = Zero::kAbsent,
         .default_note = "heads"},
        model.kv_heads);
  visit({.name = "headDim",
         .description = "Features per head; hidden / heads for GPT2.",
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
         .default_note = "4 x hidden; if gated, 8/3 x hidden rounded up to a multiple of 64"},
        model.ffn);
  visit({.name = "vocab",
         .description = "Vocabulary size, in tokens. If it is left out, the worker uses the size "
                        "in the headers of the token shards.",
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
         .description =
             "Use the token embedding as the output projection too; must be true for GPT2."},
        model.tie_embeddings);
  visit({.name = "dropout",
         .description = "Probability with which training drops an activation; families other than "
                        "GPT2 drop only in attention.",
         .minimum = 0,
         .below = 1},
        model.dropout);
  visit(
      {.name = "attentionBias",
       .description =
           "Add biases to queries, keys, values and the output of attention; for Llama and Qwen3.",
       .default_note = "from import, else false"},
      model.attention_bias);
  visit({.name = "ffnBias",
         .description = "Add biases to the feed-forward layer; for Llama.",
         .default_note = "from import, else false"},
        model.ffn_bias);
  visit({.name = "ropeTheta",
         .description = "Base of rotary positions; not for GPT2, which learns its positions.",
         .minimum = 1,
         .maximum = kMaxFactor,
         .default_note = "from preset or import, else 10000"},
        model.rope_theta);
  visit({.name = "ropeScaling",
         .description = "Scaling of rotary positions to more positions than those of the model's "
                        "first training.",
         .default_note = "from import, else none"},
        model.rope_scaling);
  visit({.name = "slidingWindow",
         .description = "Keys to which a query attends: its own and those directly before it. For "
                        "Mistral, Qwen2 and Qwen3.",
         .minimum = 1,
         .maximum = kMaxSize,
         .zero = Zero::kAbsent,
         .default_note = "from import, else no window"},
        model.sliding_window);
  visit({.name = "fullLayers",
         .description = "Blocks, counted from the first, whose queries attend to all earlier keys "
                        "despite slidingWindow. For Qwen2 and Qwen3.",
         .minimum = 0,
         .maximum = kMaxLayers,
         .default_note = "from import, else 0",
         .unwritten_zero = true},
        model.full_layers);
  visit({.name = "layerNormEpsilon",
         .description = "Constant added to the variance, or mean of squares, in normalization.",
         .minimum = 0,
         .below = 1,
         .default_note = "from import, else 0.00001"},
        model.layer_norm_epsilon);
  visit({.name = "import",
         .description = "Hugging Face folder (config.json and safetensors) with the shape and "
                        "weights from which the run starts; excludes preset, and shape keys must "
                        "agree with it. Once the run has a checkpoint, the folder may be deleted.",
         .default_note = "fresh weights",
         .content = Content::kPath},
        model.import_path);
}

}  // namespace trainyard::api

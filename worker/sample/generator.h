#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "common/base/error.h"
#include "worker/engine/engine.h"

namespace trainyard::engine {

struct SampleOptions {
  int64_t tokens = 256;      ///< how many to generate
  double temperature = 0.8;  ///< 0: always the most probable
  int64_t top_k = 0;         ///< draw among the k most probable; 0: all
  uint64_t seed = 1;
  int32_t stop_token = -1;  ///< ends the text; -1: none
  /// How many ids the tokenizer has a text for; 0: not known. See drawn_ids().
  int64_t tokenizer_vocabulary = 0;
};

/// How many ids, from 0 on, may be drawn. A model's vocabulary is often padded above its
/// tokenizer's: it has logits for ids that stand for no text, and in a young model they are as
/// probable as others. They count in the loss, where the model learns not to predict them.
int64_t drawn_ids(int64_t model_vocabulary, int64_t tokenizer_vocabulary);

/// Draws one token from `logits` (the first `vocab` count). `draw` in [0, 1). Pure.
int32_t choose_token(std::span<const float> logits, int64_t vocab, const SampleOptions& options,
                     double draw);

/// How far back the model looks: as far as it was trained to, which is sequenceLength, or every
/// position of an imported model. What comes after would stand at positions that are noise.
int64_t context_tokens(const Engine& engine);

/// Generates after `prompt` (not empty), calling `on_token` with each; stops early when it returns
/// false. The context is the newest context_tokens() of them. The same seed gives the same text.
/// Errors: kInvalidConfig for an empty prompt or tokens outside the vocabulary; kInvalidData for a
/// model that has diverged: a logit is not finite or too large.
Status generate(Engine& engine, std::vector<int32_t> prompt, const SampleOptions& options,
                const std::function<bool(int32_t token)>& on_token);

}  // namespace trainyard::engine

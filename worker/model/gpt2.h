#pragma once

#include <cstdint>

#include "common/base/error.h"
#include "worker/model/model.h"

namespace trainyard::engine {

/// Sizes of a GPT-2 family model (Radford et al. 2019): pre-norm blocks, learned positions, tanh
/// GELU, tied embeddings.
struct Gpt2Config {
  int64_t layers = 0;
  int64_t hidden = 0;
  int64_t heads = 0;
  int64_t ffn = 0;
  int64_t vocab = 0;
  int64_t max_positions = 0;
  double dropout = 0;
  double layer_norm_epsilon = 1e-5;
};

/// Vocabulary rows are padded to a multiple of this, which no layout changes.
inline constexpr int64_t kVocabPadding = 64;

constexpr int64_t padded_vocab(int64_t vocab) {
  return (vocab + kVocabPadding - 1) / kVocabPadding * kVocabPadding;
}

/// The model: layers `embedding`, `h.0` ... `h.<n-1>`, `head`. C, the number of fixed chunks of
/// every splittable dimension, is the number of heads. Errors: kInvalidConfig naming the field
/// (sizes < 1, hidden not a multiple of heads, ...).
Result<Model> make_gpt2(const Gpt2Config& config);

}  // namespace trainyard::engine

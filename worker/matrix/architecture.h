#pragma once

#include <algorithm>
#include <cstdint>

#include "common/api/engine_spec.h"
#include "common/layout/mesh.h"

namespace trainyard::matrix {

/// What the formulas ask of an architecture, as one of `ranks` tensor ranks has it. Written out
/// here on purpose, apart from the model's own list.
struct Architecture {
  Architecture(const api::ModelSpec& m, int64_t ranks, int64_t rank) : hidden(m.hidden) {
    const bool gpt2 = m.family == api::ModelFamily::kGPT2;
    const auto share = [&](int64_t all) { return all * (rank + 1) / ranks - all * rank / ranks; };
    heads = m.heads / ranks;
    const int64_t all_keys = m.kv_heads > 0 ? m.kv_heads : m.heads;
    kv_heads = std::max<int64_t>(1, all_keys / ranks);
    ffn = share(m.ffn);
    padded_vocab = share((m.vocab + 63) / 64 * 64);
    head_dim = m.head_dim > 0 ? m.head_dim : m.hidden / m.heads;
    query = heads * head_dim;
    keys = all_keys < ranks ? 2 * all_keys * head_dim : 0;
    packed = query + 2 * all_keys * head_dim / ranks;
    gathered = query + 2 * kv_heads * head_dim;
    gates = gpt2 ? 1 : 2;
    norm_vectors = gpt2 ? 2 : 1;
    learns_positions = gpt2;
    two_tables = !m.tie_embeddings;
    head_norm = m.family == api::ModelFamily::kQwen3;
    const bool attention_bias = gpt2 || m.attention_bias.value_or(false);
    const bool ffn_bias = gpt2 || m.ffn_bias.value_or(false);
    qkv_bias = attention_bias || m.family == api::ModelFamily::kQwen2;
    output_bias = attention_bias;
    up_bias = down_bias = ffn_bias;
  }

  int64_t hidden = 0, ffn = 0, heads = 0, kv_heads = 0, head_dim = 0;
  int64_t padded_vocab = 0;  ///< rows of a table
  int64_t query = 0;         ///< width of all query heads
  int64_t packed = 0;        ///< of queries, keys and values
  int64_t gathered = 0;      ///< the same with whole heads of keys and values, also shared ones
  int64_t keys = 0;          ///< of all heads' keys and values where ranks share them, else 0
  int64_t gates = 1;         ///< matrices that lead into the feed-forward layer
  int64_t norm_vectors = 1;  ///< weights, and what is learned beside them
  bool learns_positions = false;
  bool two_tables = false;  ///< the head's is not the embedding's
  bool head_norm = false;   ///< of queries and keys
  bool qkv_bias = false, output_bias = false, up_bias = false, down_bias = false;

  /// Elements of a block's four linears.
  int64_t matrices() const { return hidden * (packed + query + (gates + 1) * ffn); }
};

/// Elements of the matrices and vectors that some layers of a model with padded vocabulary V read,
/// each of which begins at a multiple of 64: embeddings, per block two norms and four linears, and
/// the last norm with its table.
struct Elements {
  int64_t matrices = 0;
  int64_t vectors = 0;
};
inline Elements elements_of(const api::ModelSpec& m, const Architecture& a, layout::Range layers) {
  const auto padded = [](int64_t count) { return (count + 63) / 64 * 64; };
  const int64_t h = a.hidden;
  Elements all;
  const bool embeds = layers.begin == 0;
  const bool has_head = layers.end == m.layers + 2;
  const int64_t tables =
      a.two_tables ? (embeds ? 1 : 0) + (has_head ? 1 : 0) : (embeds || has_head ? 1 : 0);
  all.matrices += tables * padded(a.padded_vocab * h);
  if (embeds && a.learns_positions) all.matrices += padded(m.max_positions * h);
  if (has_head) all.vectors += a.norm_vectors * padded(h);
  const int64_t blocks = layers.size() - (embeds ? 1 : 0) - (has_head ? 1 : 0);
  all.matrices += blocks * (padded(a.packed * h) + padded(a.query * h) +
                            padded(a.gates * a.ffn * h) + padded(a.ffn * h));
  int64_t vectors = 2 * a.norm_vectors * padded(h);
  if (a.head_norm) vectors += 2 * padded(a.head_dim);
  if (a.qkv_bias) vectors += padded(a.packed);
  if (a.output_bias) vectors += padded(h);
  if (a.up_bias) vectors += padded(a.gates * a.ffn);
  if (a.down_bias) vectors += padded(h);
  all.vectors += blocks * vectors;
  return all;
}

}  // namespace trainyard::matrix

#pragma once

#include <span>
#include <vector>

#include "kernels/head_parts.h"
#include "kernels/kernel_set.h"

/// What operations read and write in their device's memory; null: nothing. Left out is what the
/// kernel set reads on the host, at the call: tokens, targets, rows, grains, frequencies and ends
/// of chains.
namespace trainyard::engine::testing {

using Addresses = std::vector<const void*>;

inline Addresses addresses_of(const kernels::GemmParams& p) {
  return {p.a, p.b, p.bias, p.c, p.overflow, p.squares.limbs, p.squares.overflow};
}
inline Addresses addresses_of(const kernels::LayerNormForward& p) {
  return {p.x.data, p.gamma, p.beta, p.y.data, p.mean, p.rstd};
}
inline Addresses addresses_of(const kernels::LayerNormBackwardInput& p) {
  return {p.dy.data, p.x.data, p.gamma, p.mean, p.rstd, p.dx.data};
}
inline Addresses addresses_of(const kernels::LayerNormBackwardWeight& p) {
  return {p.dy.data, p.x.data, p.mean, p.rstd, p.dgamma.data(), p.dbeta.data(), p.overflow};
}
inline Addresses addresses_of(const kernels::HeadNormForward& p) {
  return {p.x.data, p.query_gamma, p.key_gamma, p.y.data, p.rstd};
}
inline Addresses addresses_of(const kernels::HeadNormBackwardInput& p) {
  return {p.dy.data, p.x.data, p.query_gamma, p.key_gamma, p.rstd, p.dx.data};
}
inline Addresses addresses_of(const kernels::HeadNormBackwardWeight& p) {
  return {p.dy.data, p.x.data, p.rstd, p.d_query_gamma.data(), p.d_key_gamma.data(), p.overflow};
}
inline Addresses addresses_of(const kernels::Rope& p) { return {p.x.data, p.y.data}; }
inline Addresses addresses_of(const kernels::RoundExact& p) {
  return {p.sums.data(), p.bias, p.y.data};
}
inline Addresses addresses_of(const kernels::BiasBackward& p) {
  return {p.dy.data, p.d_bias.data(), p.overflow};
}
inline Addresses addresses_of(const kernels::GeluForward& p) { return {p.x.data, p.y.data}; }
inline Addresses addresses_of(const kernels::GeluBackward& p) {
  return {p.dy.data, p.x.data, p.dx.data};
}
inline Addresses addresses_of(const kernels::GatedForward& p) { return {p.x.data, p.y.data}; }
inline Addresses addresses_of(const kernels::GatedBackward& p) {
  return {p.dy.data, p.x.data, p.dx.data};
}
inline Addresses addresses_of(const kernels::DropoutAdd& p) {
  return {p.x.data, p.residual.data, p.y.data};
}
inline Addresses addresses_of(const kernels::DropoutBackward& p) { return {p.dy.data, p.dx.data}; }
inline Addresses addresses_of(const kernels::EmbeddingForward& p) {
  return {p.wte.data, p.wpe.data, p.y.data};
}
inline Addresses addresses_of(const kernels::EmbeddingBackward& p) {
  return {p.dy.data, p.d_wte.data(), p.d_wpe.data(), p.overflow};
}
inline void add_addresses(const kernels::KeyBlock* keys, Addresses& all) {
  if (keys == nullptr) return;
  for (const void* address :
       Addresses{keys->kv.data, keys->carry, keys->row_max, keys->row_sum, keys->d_kv})
    all.push_back(address);
}
inline Addresses addresses_of(const kernels::AttentionForward& p) {
  Addresses all = {p.qkv.data, p.out.data, p.lse, p.overflow};
  add_addresses(p.keys, all);
  return all;
}
inline Addresses addresses_of(const kernels::AttentionBackward& p) {
  Addresses all = {p.qkv.data, p.out.data, p.lse, p.d_out.data, p.d_qkv.data, p.overflow};
  add_addresses(p.keys, all);
  return all;
}
inline Addresses addresses_of(const kernels::VocabularyStatistics& p) {
  return {p.logits, p.part.statistics, p.statistics};
}
inline Addresses addresses_of(const kernels::CrossEntropy& p) {
  return {p.logits.data,   p.loss_sum, p.coarse_loss_sum,
          p.d_logits.data, p.overflow, p.part.statistics};
}
inline Addresses addresses_of(const kernels::SumOfSquares& p) {
  return {p.gradient.sums, p.gradient.rounded, p.rounded, p.limbs, p.overflow};
}
inline Addresses addresses_of(std::span<const kernels::AdamW> tensors) {
  Addresses all;
  for (const kernels::AdamW& p : tensors) {
    for (const void* address : Addresses{p.gradient.sums, p.gradient.rounded, p.parameter, p.m, p.v,
                                         p.bf16_copy, p.scalars})
      all.push_back(address);
  }
  return all;
}
inline Addresses addresses_of(const kernels::HeadParts& p) { return {p.whole, p.parts}; }

}  // namespace trainyard::engine::testing

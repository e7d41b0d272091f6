#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "common/api/engine_spec.h"
#include "common/base/error.h"
#include "worker/model/model.h"

/// Decoders of Llama's kind (Touvron et al. 2023): pre-norm blocks of RMSNorm, rotary positions,
/// grouped heads and gated feed-forward layers. worker/model/family.h says what each function is
/// for.
namespace trainyard::engine {

/// In what one family differs from the others.
struct DecoderFamily {
  api::ModelFamily family;
  std::string_view model_type;
  std::string_view architecture;    ///< transformers' class
  bool qkv_bias = false;            ///< of queries, keys and values, always
  bool head_norm = false;           ///< of queries and keys, always
  bool has_attention_bias = false;  ///< config.json may say attention_bias
  bool has_ffn_bias = false;        ///< config.json may say mlp_bias
  int64_t head_dim = 0;             ///< where config.json has none; 0: hidden_size / heads
  int64_t kv_heads = 0;             ///< where config.json has none; 0: as many as heads
  bool has_window = false;          ///< config.json may say sliding_window
  uint64_t window = 0;              ///< where config.json has none; 0: no window
  /// Whether use_sliding_window asks for it, and max_window_layers or layer_types leave blocks out.
  bool asks_for_window = false;
};

inline constexpr DecoderFamily kLlamaFamily = {.family = api::ModelFamily::kLlama,
                                               .model_type = "llama",
                                               .architecture = "LlamaForCausalLM",
                                               .has_attention_bias = true,
                                               .has_ffn_bias = true};
inline constexpr DecoderFamily kQwen2Family = {.family = api::ModelFamily::kQwen2,
                                               .model_type = "qwen2",
                                               .architecture = "Qwen2ForCausalLM",
                                               .qkv_bias = true,
                                               .kv_heads = 32,
                                               .has_window = true,
                                               .asks_for_window = true};
inline constexpr DecoderFamily kQwen3Family = {.family = api::ModelFamily::kQwen3,
                                               .model_type = "qwen3",
                                               .architecture = "Qwen3ForCausalLM",
                                               .head_norm = true,
                                               .has_attention_bias = true,
                                               .head_dim = 128,
                                               .kv_heads = 32,
                                               .has_window = true,
                                               .asks_for_window = true};
inline constexpr DecoderFamily kMistralFamily = {.family = api::ModelFamily::kMistral,
                                                 .model_type = "mistral",
                                                 .architecture = "MistralForCausalLM",
                                                 .kv_heads = 8,
                                                 .has_window = true,
                                                 .window = 4096};

/// Layers `embedding`, `layers.0` ... `layers.<n-1>`, `head`. Every splittable dimension has
/// `tensor_chunks` fixed pieces; 0: sums are not cut. Errors: kInvalidConfig naming the field.
Result<Model> build_decoder(const DecoderFamily& family, const api::ModelSpec& spec,
                            int64_t tensor_chunks);

/// Keys and defaults: transformers' LlamaConfig, Qwen2Config, Qwen3Config and MistralConfig.
Result<api::ModelSpec> decoder_from_config(const DecoderFamily& family,
                                           const nlohmann::json& config,
                                           std::vector<std::string>& notes);
/// With the keys of rotary positions that transformers 5 reads, and those of the versions before.
nlohmann::ordered_json decoder_to_config(const DecoderFamily& family, const api::ModelSpec& spec);

/// Frequencies, which old files carry beside the weights.
bool is_decoder_buffer(std::string_view name);

}  // namespace trainyard::engine

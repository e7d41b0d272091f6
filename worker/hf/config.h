#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/error.h"
#include "worker/hf/gpt2.h"

namespace trainyard::hf {

/// A config.json as this engine understands it.
struct ParsedConfig {
  Gpt2Config config;
  std::vector<std::string> notes;  ///< harmless differences
};

/// Errors: kInvalidData for text that is no such file, kInvalidConfig for a GPT-2 variant this
/// engine does not compute (another activation, untied embeddings, scaled attention ...); both name
/// the key. Keys and defaults: transformers' GPT2Config.
Result<ParsedConfig> parse_config(std::string_view text);

/// The config.json of an export.
std::string make_config(const Gpt2Config& config);

/// Errors: kInvalidConfig for sizes that make no GPT-2 (not positive, heads not dividing hidden, or
/// more than 2^31).
Status check_config(const Gpt2Config& config);

}  // namespace trainyard::hf

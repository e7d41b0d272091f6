#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/error.h"
#include "worker/hf/gpt2.h"

namespace trainyard::hf {

/// A config.json as this engine understands it.
struct ParsedConfig {
  Gpt2Config config;
  ImportedFacts facts;             ///< `config` alone
  std::vector<std::string> notes;  ///< harmless differences
};

/// Errors: kInvalidData for text that is no such file, kInvalidConfig for a GPT-2 variant this
/// engine does not compute (another activation, untied embeddings, scaled attention, pruned heads,
/// quantised weights, code of its own ...); both name
/// the key. Keys and defaults: transformers' GPT2Config.
Result<ParsedConfig> parse_config(std::string_view text);

/// The config.json of an export: the imported facts win. Without them the special token ids are
/// `end_of_text`, or null where it is not known.
std::string make_config(const Gpt2Config& config, const ImportedFacts& imported,
                        std::optional<int32_t> end_of_text);

/// Errors: kInvalidConfig for sizes that make no GPT-2 (not positive, heads not dividing hidden, or
/// more than 2^31).
Status check_config(const Gpt2Config& config);

}  // namespace trainyard::hf

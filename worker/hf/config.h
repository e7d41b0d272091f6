#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/error.h"
#include "worker/hf/model_folder.h"

namespace trainyard::hf {

/// A config.json as this engine understands it.
struct ParsedConfig {
  api::ModelSpec spec;
  ImportedFacts facts;             ///< `config` alone
  std::vector<std::string> notes;  ///< harmless differences
};

/// Errors: kInvalidData for text that is no such file, kInvalidConfig for a family that this engine
/// does not have or a variant that it does not compute (another activation, untied embeddings,
/// scaled attention, pruned heads, quantised weights, code of its own ...); both name the key.
Result<ParsedConfig> parse_config(std::string_view text);

/// The config.json of an export of weights of that type: the imported facts win. Without them the
/// special token ids are `end_of_text`, or null where it is not known. Errors: those of
/// engine::find_family.
Result<std::string> make_config(const api::ModelSpec& spec, const ImportedFacts& imported,
                                std::optional<int32_t> end_of_text, DType dtype = DType::kFloat32);

}  // namespace trainyard::hf

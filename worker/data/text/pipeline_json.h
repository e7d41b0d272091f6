#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/base/error.h"
#include "worker/data/text/pre_tokenizer.h"

namespace trainyard::data {

/// What a tokenizer does around its merges.
struct Pipeline {
  bool nfc = false;            ///< texts are normalized first
  PreTokenization cuts;        ///< how they are cut into pieces
  bool ignore_merges = false;  ///< a piece that is a token is that token
  /// Tokens around each record: those of a post-processor, special ones.
  std::vector<int32_t> before;
  std::vector<int32_t> after;
  bool operator==(const Pipeline&) const = default;
};

/// Reads the parts of a tokenizer.json beside its tables. Errors: kInvalidData naming the file, the
/// part that this version does not know or that is wrong, the value found and the value wanted.
Result<Pipeline> pipeline_of(const std::filesystem::path& file, const nlohmann::json& root);

}  // namespace trainyard::data

#pragma once

#include <string_view>

#include "common/base/error.h"
#include "worker/safetensors/safetensors.h"

namespace trainyard::safetensors {

/// The JSON of a header as entries and metadata, in the order written; offsets and types are not
/// checked yet. Errors: kInvalidData for what is no JSON, not UTF-8, of another structure, or names
/// a tensor or member twice. Memory: bounded by a small multiple of the text, whatever it holds.
Result<Header> parse_header_json(std::string_view text);

}  // namespace trainyard::safetensors

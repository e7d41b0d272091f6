#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/error.h"
#include "kernels/rows.h"
#include "worker/data/dataset.h"

namespace trainyard::data {

class ManifestCache;

/// The token behind each document of a data set: what the dataset.json beside its shards says; of
/// bytes it is known. Errors: kInvalidData where nothing says, or the shards do not agree.
Result<int32_t> end_of_text_of(const TokenSet& tokens, ManifestCache& manifests);
Result<int32_t> end_of_text_of(const TokenSet& tokens);

/// Appends the documents of a window, each a sequence of its own from position 0 on. A document
/// begins with the end of text before it, which says nothing of what that ends: so no token is
/// predicted from another document. `begin`: the window's first row. A document's ordinal is the
/// window's and, above bit 40, its place there: each has masks of its own, and the first those of a
/// window that is not cut.
void add_documents(std::span<const int32_t> window, int32_t end_of_text, int64_t begin,
                   int64_t ordinal, std::vector<kernels::Sequence>& sequences);

}  // namespace trainyard::data

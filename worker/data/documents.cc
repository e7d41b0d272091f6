#include "worker/data/documents.h"

#include <filesystem>
#include <optional>
#include <string>

#include "common/hash/hash.h"
#include "worker/data/dataset_manifest.h"

namespace trainyard::data {
namespace {

namespace fs = std::filesystem;

constexpr int kPlaceShift = 40;

Error unknown(const fs::path& shard, const std::string& found) {
  return {ErrorCode::kInvalidData,
          "engine.data.documents: Isolate: " + shard.string() + ": found " + found +
              ", wanted a dataset.json next to its split's folder that says which token ends a "
              "document; put the one of `trainyard data prepare` there, or use Join"};
}

}  // namespace

Result<int32_t> end_of_text_of(const TokenSet& tokens, ManifestCache& manifests) {
  if (tokens.tokenizer() == "bytes") return 0;
  std::optional<int64_t> known;
  for (const TokenFile& file : tokens.files()) {
    std::error_code code;
    const fs::path split = fs::canonical(file.path(), code).parent_path();
    const DatasetManifest* const manifest = code ? nullptr : manifests.of_split(split);
    if (manifest == nullptr) return unknown(file.path(), "none");
    const DatasetManifest::Recipe& recipe = manifest->recipe;
    if (recipe.tokenizer_hash != to_hex(tokens.tokenizer_hash()))
      return unknown(file.path(), "that of the tokenizer " + recipe.tokenizer_hash);
    if (known.value_or(recipe.end_of_text) != recipe.end_of_text)
      return unknown(file.path(), "end of text " + std::to_string(recipe.end_of_text) +
                                      " together with " + std::to_string(*known));
    known = recipe.end_of_text;
  }
  return static_cast<int32_t>(*known);
}

Result<int32_t> end_of_text_of(const TokenSet& tokens) {
  ManifestCache manifests;
  return end_of_text_of(tokens, manifests);
}

void add_documents(std::span<const int32_t> window, int32_t end_of_text, int64_t begin,
                   int64_t ordinal, std::vector<kernels::Sequence>& sequences) {
  const auto length = static_cast<int64_t>(window.size());
  for (int64_t first = 0, end = 1; first < length; first = end++) {
    while (end < length && window[static_cast<size_t>(end)] != end_of_text)
      ++end;
    sequences.push_back(
        {.begin = begin + first,
         .length = end - first,
         .ordinal = ordinal + static_cast<int64_t>(static_cast<uint64_t>(first) << kPlaceShift)});
  }
}

}  // namespace trainyard::data

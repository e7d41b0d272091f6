#include "worker/data/copies.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <system_error>

#include "common/hash/hash.h"
#include "worker/data/dataset_manifest.h"

namespace trainyard::data {
namespace {

namespace fs = std::filesystem;

/// Files of a size that occurs in several splits, by that size. Empty files hold no text.
std::map<int64_t, std::vector<size_t>> candidates(std::span<const Source> files) {
  std::map<int64_t, std::vector<size_t>> by_size;
  for (size_t i = 0; i < files.size(); ++i) {
    if (files[i].bytes > 0) by_size[files[i].bytes].push_back(i);
  }
  std::erase_if(by_size, [&](const auto& group) {
    const std::string& split = files[group.second.front()].split;
    return std::ranges::all_of(group.second, [&](size_t i) { return files[i].split == split; });
  });
  return by_size;
}

Result<std::string> hash_of(const Source& file, const ComparingProgress& progress) {
  Sha256Stream hash;
  TRAINYARD_TRY(read_pieces(file.path, [&](std::string_view piece) -> Status {
    hash.update(std::as_bytes(std::span(piece)));
    if (progress) progress(file.name, static_cast<int64_t>(piece.size()));
    return {};
  }));
  return to_hex(hash.digest());
}

/// Names of the documents of the data sets that the shards belong to, by the hash of their bytes.
/// Nothing where no dataset.json says.
std::map<std::string_view, std::string_view> documents_of(const TokenSet& set,
                                                          ManifestCache& manifests) {
  std::map<std::string_view, std::string_view> documents;
  std::set<fs::path> seen;
  for (const TokenFile& file : set.files()) {
    std::error_code code;
    const fs::path split = fs::canonical(file.path(), code).parent_path();
    if (code || !seen.insert(split).second) continue;
    const DatasetManifest* manifest = manifests.of_split(split);
    if (manifest == nullptr) continue;
    for (const SourceRecord& source : manifest->recipe.sources) {
      if (source.bytes > 0 && source.split == split.filename())
        documents.emplace(source.sha256, source.name);
    }
  }
  return documents;
}

std::string sentence(const std::string& found, const std::string& example) {
  return "engine.data.validation: found " + found + " of engine.data.tokens, for example " +
         example +
         "; wanted text that is not trained on: its loss tells nothing about other text. Prepare "
         "both sets from one folder by --split, which refuses copies";
}

}  // namespace

int64_t bytes_to_compare(std::span<const Source> files) {
  int64_t bytes = 0;
  for (const auto& [size, group] : candidates(files))
    bytes += size * static_cast<int64_t>(group.size());
  return bytes;
}

Result<std::vector<Copy>> find_copies(std::span<const Source> files,
                                      std::span<const SplitRule> rules,
                                      const ComparingProgress& progress) {
  const auto place_of = [&](size_t file) {
    return std::ranges::find(rules, files[file].split, &SplitRule::name) - rules.begin();
  };
  std::vector<Copy> copies;
  for (const auto& [size, group] : candidates(files)) {
    std::map<std::string, std::vector<size_t>> by_content;
    for (const size_t i : group) {
      TRAINYARD_ASSIGN(std::string hash, hash_of(files[i], progress));
      by_content[std::move(hash)].push_back(i);
    }
    for (const auto& [hash, alike] : by_content) {
      const size_t of = *std::ranges::min_element(alike, {}, place_of);
      for (const size_t i : alike) {
        if (files[i].split != files[of].split) copies.push_back({i, of});
      }
    }
  }
  std::ranges::sort(copies, {}, &Copy::file);
  return copies;
}

std::string shared_text(const TokenSet& training, const TokenSet& held_out,
                        ManifestCache& manifests) {
  std::map<Hash128, const TokenFile*> by_content;
  for (const TokenFile& file : training.files())
    by_content.emplace(file.info().content_hash, &file);
  size_t shards = 0;
  std::string example;
  for (const TokenFile& held : held_out.files()) {
    const auto found = by_content.find(held.info().content_hash);
    if (found == by_content.end()) continue;
    if (shards++ == 0) example = held.path().string() + " = " + found->second->path().string();
  }
  if (shards > 0) {
    return sentence(std::to_string(shards) + " of its " + std::to_string(held_out.files().size()) +
                        " shards among those",
                    example);
  }
  const auto trained = documents_of(training, manifests);
  const auto held = documents_of(held_out, manifests);
  size_t documents = 0;
  for (const auto& [hash, name] : held) {
    const auto found = trained.find(hash);
    if (found == trained.end()) continue;
    if (documents++ == 0) example = std::string(name) + " = " + std::string(found->second);
  }
  if (documents == 0) return "";
  return sentence(std::to_string(documents) + " of its " + std::to_string(held.size()) +
                      " documents among those",
                  example);
}

}  // namespace trainyard::data

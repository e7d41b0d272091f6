#include "worker/hf/run_tokenizer.h"

#include <utility>

#include "common/hash/hash.h"
#include "common/io/file.h"

namespace trainyard::hf {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kFileBytesMax = int64_t{256} << 20;
// Of the tokenizer that OpenAI published with GPT-2 (docs/formats/tokens.md), and its end of text.
constexpr char kGpt2Hash[] = "46df9e84b2018f8d7579a8cd48dbaf39";
constexpr int32_t kGpt2EndOfText = 50256;

std::string hash_of(const data::Tokenizer& tokenizer) { return to_hex(tokenizer.identity()); }

std::string described(const data::Tokenizer& tokenizer) {
  return std::string(tokenizer.name()) + " (" + hash_of(tokenizer) + ")";
}

/// The file's content under `name`, where there is such a file.
Status add_file(const fs::path& file, const std::string& name, std::vector<ExportFile>& files) {
  Result<std::string> content = read_file(file, kFileBytesMax);
  if (!content) return content.error().code == ErrorCode::kNotFound ? Status() : content.error();
  files.push_back({name, *std::move(content)});
  return {};
}

Result<std::vector<ExportFile>> files_of_tokenizer(const fs::path& place) {
  TRAINYARD_ASSIGN(const data::TokenizerFiles found, data::find_tokenizer(place));
  std::vector<ExportFile> files;
  if (found.merges.empty()) {
    TRAINYARD_TRY(add_file(found.vocabulary, "tokenizer.json", files));
  } else {
    // OpenAI's two files have other names for the same content.
    TRAINYARD_TRY(add_file(found.vocabulary, "vocab.json", files));
    TRAINYARD_TRY(add_file(found.merges, "merges.txt", files));
  }
  if (found.vocabulary.filename() == "encoder.json") return files;
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
                           "chat_template.jinja"}) {
    TRAINYARD_TRY(add_file(found.vocabulary.parent_path() / name, name, files));
  }
  return files;
}

}  // namespace

Status check_run_tokenizer(const RunFacts& facts, const data::Tokenizer& tokenizer,
                           std::string_view what) {
  if (facts.tokenizer_hash.empty() || facts.tokenizer_hash == hash_of(tokenizer)) return {};
  return Error{ErrorCode::kInvalidConfig,
               std::string(what) + ": found " + described(tokenizer) +
                   ", wanted the tokenizer that the model was trained with, " + facts.tokenizer +
                   " (" + facts.tokenizer_hash + ")"};
}

Result<FoundTokenizer> find_run_tokenizer(const RunFacts& facts,
                                          std::span<const std::string> places) {
  if (facts.tokenizer_hash.empty()) {
    return Error{ErrorCode::kNotFound,
                 "the checkpoint does not say which tokenizer its tokens were made with"};
  }
  std::string seen;
  TRAINYARD_ASSIGN(auto bytes, data::open_tokenizer("bytes"));
  if (hash_of(*bytes) == facts.tokenizer_hash) return FoundTokenizer{std::move(bytes), "bytes"};
  for (const std::string& place : places) {
    auto tokenizer = data::open_tokenizer(place);
    if (tokenizer && hash_of(**tokenizer) == facts.tokenizer_hash) {
      return FoundTokenizer{*std::move(tokenizer), place};
    }
    seen +=
        "; " + (tokenizer ? place + " is " + described(**tokenizer) : tokenizer.error().message);
  }
  return Error{ErrorCode::kNotFound,
               "the model was trained with tokenizer " + facts.tokenizer + " (" +
                   facts.tokenizer_hash +
                   "), which is in none of the places that the run's manifest names" + seen};
}

Result<GatheredExtras> gather_extras(const RunFacts& facts, std::span<const std::string> places) {
  GatheredExtras gathered;
  gathered.extras.imported = facts.imported;
  if (facts.tokenizer_hash == kGpt2Hash) gathered.extras.end_of_text = kGpt2EndOfText;
  const Result<FoundTokenizer> found = find_run_tokenizer(facts, places);
  if (!found) {
    gathered.without_tokenizer = found.error().message;
    return gathered;
  }
  gathered.extras.end_of_text = found->tokenizer->end_of_text();
  if (found->place == "bytes") {
    gathered.without_tokenizer = "bytes are their own ids, and transformers has no such tokenizer";
    return gathered;
  }
  TRAINYARD_ASSIGN(gathered.extras.files, files_of_tokenizer(found->place));
  return gathered;
}

}  // namespace trainyard::hf

#include "worker/data/text/tokenizer_json.h"

#include <algorithm>
#include <initializer_list>
#include <string>

#include "common/text/bounded_json.h"

namespace trainyard::data {
namespace {

using Json = nlohmann::json;

constexpr int kConfigDepthMax = 64;
constexpr size_t kShownBytes = 200;

Error refuse(const std::filesystem::path& file, const std::string& what) {
  return {ErrorCode::kInvalidData, file.string() + ": " + what};
}

std::string shown(const Json& value) { return value.dump().substr(0, kShownBytes); }

/// Refuses members of `object` that are not among `known`: they may say how texts are encoded.
Status check_known(const std::filesystem::path& file, const std::string& pointer,
                   const Json& object, std::initializer_list<std::string_view> known) {
  for (const auto& [key, value] : object.items()) {
    if (value.is_null() || std::ranges::find(known, key) != known.end()) continue;
    return refuse(file, pointer + "/" + key + ": found " + shown(value) +
                            ", which this version does not know, wanted none");
  }
  return {};
}

/// A flag of an added token; `fallback` where it is absent.
Result<bool> flag_of(const std::filesystem::path& file, const Json& token, const char* key,
                     bool fallback) {
  const auto found = token.find(key);
  if (found == token.end()) return fallback;
  if (found->is_boolean()) return found->get<bool>();
  return refuse(file, "added token " + shown(token) + ": " + key + ": found " + shown(*found) +
                          ", wanted true or false");
}

Result<AddedToken> added_token_of(const std::filesystem::path& file, const Json& json, int32_t id) {
  if (!json.is_object() || !json.contains("content") || !json["content"].is_string() ||
      json["content"] == "") {
    return refuse(file, "/added_tokens: found " + shown(json) + ", wanted {id, content, ...}");
  }
  TRAINYARD_TRY(check_known(
      file, "/added_tokens", json,
      {"id", "content", "special", "normalized", "lstrip", "rstrip", "single_word", "__type"}));
  AddedToken token{.content = json["content"].get<std::string>(), .id = id};
  TRAINYARD_ASSIGN(token.special, flag_of(file, json, "special", false));
  TRAINYARD_ASSIGN(token.normalized, flag_of(file, json, "normalized", !token.special));
  TRAINYARD_ASSIGN(token.lstrip, flag_of(file, json, "lstrip", false));
  TRAINYARD_ASSIGN(token.rstrip, flag_of(file, json, "rstrip", false));
  TRAINYARD_ASSIGN(token.single_word, flag_of(file, json, "single_word", false));
  return token;
}

bool has_token(const BpeVocabulary& tables, const std::string& content, int64_t id) {
  const bool is_added = std::ranges::any_of(tables.added, [&](const AddedToken& token) {
    return token.id == id && token.content == content;
  });
  if (is_added) return true;
  if (id < 0 || static_cast<size_t>(id) >= tables.tokens.size()) return false;
  const std::string& token = tables.tokens[static_cast<size_t>(id)];
  return token == content || token == bytes_of_written(content);
}

/// An id that is a member's name, "50257"; -1 where it is none.
int64_t id_of_key(const std::string& key) {
  const bool good = !key.empty() && key.size() < 10 &&
                    std::ranges::all_of(key, [](char c) { return c >= '0' && c <= '9'; });
  return good ? std::stoll(key) : -1;
}

}  // namespace

Result<std::vector<AddedToken>> added_tokens_of(const std::filesystem::path& file,
                                                const Json& root) {
  const Json list = root.value("added_tokens", Json::array());
  if (!list.is_array()) return refuse(file, "/added_tokens: wanted a list");
  std::vector<AddedToken> tokens;
  for (const Json& json : list) {
    const bool has_id = json.is_object() && json.contains("id") &&
                        json["id"].is_number_unsigned() &&
                        json["id"].get<uint64_t>() < uint64_t{1} << 31;
    if (!has_id) {
      return refuse(file, "/added_tokens: found " + shown(json) + ", wanted {id, content, ...}");
    }
    TRAINYARD_ASSIGN(AddedToken token, added_token_of(file, json, json["id"].get<int32_t>()));
    tokens.push_back(std::move(token));
  }
  return tokens;
}

Status check_tokenizer_config(const std::filesystem::path& file, std::string_view text,
                              const BpeVocabulary& tables) {
  const auto parsed = parse_bounded_json<Json>(text, kConfigDepthMax);
  if (!parsed) return refuse(file, parsed.error().message);
  if (!parsed->is_object()) return refuse(file, "wanted an object");
  const Pipeline& pipeline = tables.pipeline;
  for (const auto& [key, has] : {std::pair("add_prefix_space", pipeline.cuts.prefix_space),
                                 std::pair("add_bos_token", !pipeline.before.empty()),
                                 std::pair("add_eos_token", !pipeline.after.empty())}) {
    const Json found = parsed->value(key, Json());
    if (found.is_null() || found == has) continue;
    return refuse(
        file,
        std::string(key) + ": found " + shown(found) + ", wanted " + (has ? "true" : "false") +
            ", as in the vocabulary next to it; set it to that if the model was trained that way");
  }
  const Json added = parsed->value("added_tokens_decoder", Json::object());
  if (!added.is_object()) return refuse(file, "added_tokens_decoder: wanted an object");
  for (const auto& [key, json] : added.items()) {
    const int64_t id = id_of_key(key);
    TRAINYARD_ASSIGN(const AddedToken token,
                     added_token_of(file, json, static_cast<int32_t>(std::max<int64_t>(id, 0))));
    // A special token is never read from a text: its flags change nothing.
    const bool same = token.special ? has_token(tables, token.content, id)
                                    : std::ranges::find(tables.added, token) != tables.added.end();
    if (id >= 0 && same) continue;
    return refuse(file, "added_tokens_decoder/" + key + ": found " + shown(json) +
                            ", wanted the entry of the vocabulary next to it; save the tokenizer "
                            "as one tokenizer.json (PreTrainedTokenizerFast.save_pretrained)");
  }
  return {};
}

Status check_tokenizer_class(const std::filesystem::path& file, std::string_view text,
                             const BpeVocabulary& /*tables*/) {
  const auto parsed = parse_bounded_json<Json>(text, kConfigDepthMax);
  const Json found =
      parsed && parsed->is_object() ? parsed->value("tokenizer_class", Json()) : Json();
  for (const Json& known : {Json(), Json("GPT2Tokenizer"), Json("GPT2TokenizerFast")}) {
    if (found == known) return {};
  }
  return refuse(file,
                "tokenizer_class: found " + shown(found) +
                    ", wanted \"GPT2Tokenizer\" for vocab.json and merges.txt; save the "
                    "tokenizer as one tokenizer.json (PreTrainedTokenizerFast.save_pretrained)");
}

Status check_added_tokens_known(const std::filesystem::path& file, std::string_view text,
                                const BpeVocabulary& tables) {
  const auto parsed = parse_bounded_json<Json>(text, kConfigDepthMax);
  if (!parsed) return refuse(file, parsed.error().message);
  if (!parsed->is_object()) return refuse(file, "wanted an object of token: id");
  for (const auto& [content, id] : parsed->items()) {
    const bool known = id.is_number_integer() && has_token(tables, content, id.get<int64_t>());
    if (known) continue;
    return refuse(
        file, "found token '" + content + "' " + shown(id) +
                  ", wanted the id that it has in the tokenizer.json next to it, which is used; "
                  "save the tokenizer again, or move the file away if it is an older one");
  }
  return {};
}

Status check_added_tokens_file(const std::filesystem::path& file, std::string_view text,
                               const BpeVocabulary& tables) {
  const auto parsed = parse_bounded_json<Json>(text, kConfigDepthMax);
  if (!parsed) return refuse(file, parsed.error().message);
  if (!parsed->is_object()) return refuse(file, "wanted an object of token: id");
  for (const auto& [content, id] : parsed->items()) {
    const bool is_end = id.is_number_unsigned() && id == tables.end_of_text &&
                        has_token(tables, content, tables.end_of_text);
    if (is_end) continue;
    return refuse(file, "found token '" + content + "' " + shown(id) +
                            ", wanted none: vocab.json and merges.txt do not say how it is read; "
                            "save the tokenizer as one tokenizer.json "
                            "(PreTrainedTokenizerFast.save_pretrained)");
  }
  return {};
}

}  // namespace trainyard::data

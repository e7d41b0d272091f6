#include "worker/data/text/end_of_text.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "common/io/file.h"
#include "common/text/bounded_json.h"
#include "worker/data/text/left_out.h"

namespace trainyard::data {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

constexpr int64_t kBesideBytesMax = int64_t{64} << 20;
constexpr int kBesideDepthMax = 64;

/// A member of the object in `file`; null where there is no such file or member.
Result<Json> member_of(const fs::path& file, const char* key) {
  const Result<std::string> text = read_file(file, kBesideBytesMax);
  if (!text && text.error().code == ErrorCode::kNotFound) return Json();
  if (!text) return text.error();
  const auto parsed = parse_bounded_json<Json>(*text, kBesideDepthMax);
  if (!parsed) return parsed.error().with_context(file.string());
  return parsed->is_object() ? parsed->value(key, Json()) : Json();
}

Error refuse(const std::string& source, const Json& found, const std::string& wanted) {
  return {ErrorCode::kInvalidData,
          source + ": found " + found.dump().substr(0, 200) + ", wanted " + wanted};
}

std::optional<int32_t> id_of(const Json& token, const BpeVocabulary& tables) {
  if (token.is_number_unsigned() && token < tables.tokens.size()) return token.get<int32_t>();
  if (!token.is_string()) return std::nullopt;
  for (const AddedToken& added : tables.added) {
    if (token == added.content) return added.id;
  }
  const auto bytes = bytes_of_written(token.get_ref<const std::string&>());
  if (!bytes) return std::nullopt;
  const auto found = std::ranges::find(tables.tokens, *bytes);
  if (found == tables.tokens.end()) return std::nullopt;
  return static_cast<int32_t>(found - tables.tokens.begin());
}

std::string quoted(int32_t id, const BpeVocabulary& tables) {
  return "'" + on_one_line(tables.tokens[static_cast<size_t>(id)]) + "'";
}

std::string shown(const Json& token, const BpeVocabulary& tables) {
  const auto id = id_of(token, tables);
  return token.dump().substr(0, 200) +
         (id && !token.is_string() ? " (" + quoted(*id, tables) + ")" : "");
}

struct Place {
  const char* file;
  const char* key;
  bool after_vocabulary;  // the vocabulary's own <|endoftext|> comes before it
};
constexpr Place kPlaces[] = {{"generation_config.json", "eos_token_id", false},
                             {"config.json", "eos_token_id", false},
                             {"tokenizer_config.json", "eos_token", false},
                             {"special_tokens_map.json", "eos_token", true}};

/// `file` names another token than that which ends texts.
std::string note_of(const fs::path& file, const char* key, const Json& token, const EndOfText& end,
                    const BpeVocabulary& tables) {
  const auto id = id_of(token, tables);
  std::string note = file.string() + ": " + key + " names " + shown(token, tables) +
                     (id ? "" : ", no token of this tokenizer") + ", but texts end with " +
                     quoted(end.id, tables) + " of " + end.source;
  if (id && check_no_text_has("", tables, {*id}, "")) {
    note += "; to end them with the other token, put " + std::to_string(*id) +
            " first in eos_token_id of " + (file.parent_path() / kPlaces[0].file).string();
  }
  return note;
}

}  // namespace

Result<std::optional<EndOfText>> end_of_text_beside(const fs::path& folder,
                                                    const BpeVocabulary& tables) {
  std::optional<EndOfText> end;
  std::vector<std::optional<int32_t>> ids;  // those of the file that decides
  for (const Place& place : kPlaces) {
    if (place.after_vocabulary && !end && tables.end_of_text != kNoToken) {
      end = EndOfText{.id = tables.end_of_text, .source = tables.end_of_text_source, .notes = {}};
      ids = {end->id};
    }
    const std::string source = (folder / place.file).string() + ": " + place.key;
    Result<Json> member = member_of(folder / place.file, place.key);
    if (!member && !end) return member.error();
    if (!member) {
      end->notes.push_back(member.error().message + "; its " + place.key + " is not compared");
      continue;
    }
    Json found = *std::move(member);
    const bool by_name = std::string_view(place.key) == "eos_token";
    if (by_name && found.is_object()) found = Json(found.value("content", Json()));
    const bool names_none = found.is_array() && (found.empty() || found[0].is_null());
    if (found.is_null() || names_none) continue;
    // Of several ids each may end an answer; the first ends a text. So lists that share one agree,
    // and a name agrees with that which ends a text.
    const Json all = found.is_array() && !by_name ? found : Json::array({found});
    if (end) {
      const auto agrees = [&](const Json& one) {
        const auto id = id_of(one, tables);
        return id && (by_name ? *id == end->id : std::ranges::find(ids, id) != ids.end());
      };
      if (std::any_of(all.begin(), all.end(), agrees)) continue;
      end->notes.push_back(note_of(folder / place.file, place.key, all[0], *end, tables));
    } else {
      const auto id = by_name == all[0].is_string() ? id_of(all[0], tables) : std::nullopt;
      if (!id) {
        return refuse(source, all[0],
                      by_name ? std::string("a token of the vocabulary next to it")
                              : "the id of a token of the tokenizer next to it, 0.." +
                                    std::to_string(tables.tokens.size() - 1));
      }
      end = EndOfText{.id = *id, .source = source, .notes = {}};
      for (const Json& one : all)
        ids.push_back(id_of(one, tables));
    }
  }
  return end;
}

}  // namespace trainyard::data

#include "worker/data/text/end_of_text.h"

#include <algorithm>
#include <string>

#include <nlohmann/json.hpp>

#include "common/io/file.h"
#include "common/text/bounded_json.h"

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

Error refuse(const fs::path& file, const char* key, const Json& found, const std::string& wanted) {
  return {ErrorCode::kInvalidData, file.string() + ": " + key + ": found " +
                                       found.dump().substr(0, 200) + ", wanted " + wanted};
}

}  // namespace

Result<std::optional<int32_t>> end_of_text_beside(const fs::path& folder,
                                                  const BpeVocabulary& tables) {
  constexpr char kId[] = "eos_token_id";
  constexpr char kToken[] = "eos_token";
  for (const char* name : {"generation_config.json", "config.json"}) {
    TRAINYARD_ASSIGN(Json found, member_of(folder / name, kId));
    if (found.is_array() && !found.empty()) found = Json(found[0]);
    if (found.is_null()) continue;
    const bool good = found.is_number_unsigned() && found < tables.tokens.size();
    if (good) return found.get<int32_t>();
    return refuse(folder / name, kId, found,
                  "the id of a token of the tokenizer next to it, 0.." +
                      std::to_string(tables.tokens.size() - 1));
  }
  const fs::path file = folder / "tokenizer_config.json";
  TRAINYARD_ASSIGN(Json found, member_of(file, kToken));
  if (found.is_object()) found = Json(found.value("content", Json()));
  if (found.is_null()) return std::nullopt;
  for (const AddedToken& added : tables.added) {
    if (found == added.content) return added.id;
  }
  const auto token = found.is_string()
                         ? std::ranges::find(tables.tokens, found.get_ref<const std::string&>())
                         : tables.tokens.end();
  if (token != tables.tokens.end()) return static_cast<int32_t>(token - tables.tokens.begin());
  return refuse(file, kToken, found, "a token of the vocabulary next to it");
}

}  // namespace trainyard::data

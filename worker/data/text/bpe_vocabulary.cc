#include "worker/data/text/bpe_vocabulary.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <nlohmann/json.hpp>

#include "common/io/file.h"
#include "common/text/bounded_json.h"
#include "common/text/pointer_file.h"
#include "worker/data/text/left_out.h"
#include "worker/data/text/tokenizer_json.h"

namespace trainyard::data {
namespace {

using Json = nlohmann::json;

constexpr int64_t kFileBytesMax = int64_t{256} << 20;
constexpr int64_t kTokensMax = int64_t{1} << 22;  // sixteen times the largest in use
constexpr int kDepthMax = 32;
constexpr std::string_view kEndOfText = "<|endoftext|>";

Error bad(const std::filesystem::path& file, const std::string& what) {
  return {ErrorCode::kInvalidData, file.string() + ": " + what};
}

// GPT-2 writes bytes as printable characters: those that print in Latin-1 stand for themselves, the
// others are numbered from U+0100 on (Radford et al. 2019, encoder.py, bytes_to_unicode).
class ByteAlphabet {
 public:
  ByteAlphabet() {
    unsigned next = 0x100;
    for (unsigned byte = 0; byte < 256; ++byte) {
      const bool prints = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) ||
                          (byte >= 0xAE && byte <= 0xFF);
      byte_of_[prints ? byte : next++] = static_cast<int16_t>(byte);
    }
  }

  // The bytes that a token's written form stands for; nullopt when it has a foreign character.
  std::optional<std::string> bytes_of(std::string_view written) const {
    std::string bytes;
    for (size_t i = 0; i < written.size(); ++i) {
      auto code_point = static_cast<unsigned>(static_cast<unsigned char>(written[i]));
      if (code_point >= 0x80) {
        // The alphabet ends below U+0144: two bytes a character.
        if (code_point >= 0xE0 || i + 1 == written.size()) return std::nullopt;
        code_point = (code_point & 0x1F) << 6 | (static_cast<unsigned char>(written[++i]) & 0x3F);
      }
      if (code_point >= byte_of_.size() || byte_of_[code_point] < 0) return std::nullopt;
      bytes.push_back(static_cast<char>(byte_of_[code_point]));
    }
    return bytes;
  }

 private:
  static constexpr std::array<int16_t, 0x144> nothing() {
    std::array<int16_t, 0x144> table{};
    table.fill(-1);
    return table;
  }
  std::array<int16_t, 0x144> byte_of_ = nothing();
};

Result<Json> parse_json(std::string_view text, const std::filesystem::path& file) {
  Result<Json> json = parse_bounded_json<Json>(text, kDepthMax);
  if (!json) return bad(file, json.error().message);
  return json;
}

// Collects tokens and merges from either kind of file and checks that they belong together.
class Builder {
 public:
  explicit Builder(std::filesystem::path file) : file_(std::move(file)) {}

  // `vocabulary` is an object of written form -> id. Tokens of `as_spelled` may have characters
  // that are not in the alphabet.
  Status add_tokens(const Json& vocabulary, const std::unordered_set<std::string>& as_spelled) {
    if (!vocabulary.is_object()) return bad(file_, "vocabulary: wanted an object of token: id");
    const auto count = static_cast<int64_t>(vocabulary.size());
    if (count > kTokensMax) {
      return bad(file_, "vocabulary: found " + std::to_string(count) + " tokens, wanted at most " +
                            std::to_string(kTokensMax));
    }
    result_.tokens.reserve(static_cast<size_t>(count));
    for (const auto& [written, id] : vocabulary.items()) {
      const std::optional<std::string> bytes = alphabet_.bytes_of(written);
      if (!bytes && as_spelled.contains(written)) {
        TRAINYARD_TRY(add_token(written, id, written));
        spelled_.emplace(written, id.get<int32_t>());
        continue;
      }
      if (!bytes || bytes->empty()) {
        return bad(file_, "token '" + written + "': wanted the characters of the byte alphabet");
      }
      TRAINYARD_TRY(add_token(*bytes, id, written));
      id_of_.emplace(*bytes, id.get<int32_t>());
      result_.whole.push_back(id.get<int32_t>());
    }
    return {};
  }

  // After the model's own tokens. One that the model writes in these characters has its id.
  Status add_spelled(const std::string& content, int32_t id) {
    std::optional<int32_t> known = find(content);
    if (const auto spelled = spelled_.find(content); spelled != spelled_.end())
      known = spelled->second;
    if (known == id) return {};
    if (known) {
      return bad(file_, "token '" + content + "': it has two ids, " + std::to_string(*known) +
                            " and " + std::to_string(id));
    }
    spelled_.emplace(content, id);
    return add_token(content, id, content);
  }

  Status add_merge(const std::filesystem::path& file, const std::string& where,
                   std::string_view left_written, std::string_view right_written) {
    const auto left = find(left_written);
    const auto right = find(right_written);
    if (!left || !right) {
      return bad(file, where + ": '" + std::string(left ? right_written : left_written) +
                           "' is not in the vocabulary");
    }
    const auto result = id_of_.find(result_.tokens[static_cast<size_t>(*left)] +
                                    result_.tokens[static_cast<size_t>(*right)]);
    if (result == id_of_.end()) {
      return bad(file, where + ": the merged token '" + std::string(left_written) +
                           std::string(right_written) + "' is not in the vocabulary");
    }
    const uint64_t pair = static_cast<uint64_t>(*left) << 32 | static_cast<uint32_t>(*right);
    if (!pairs_.insert(pair).second) return bad(file, where + ": the pair was merged before");
    result_.merges.push_back({*left, *right, result->second});
    return {};
  }

  Result<BpeVocabulary> finish(bool may_lack_bytes) && {
    for (size_t id = 0; id < result_.tokens.size(); ++id) {
      if (result_.tokens[id].empty()) {
        return bad(file_, "vocabulary: no token has id " + std::to_string(id) + ", wanted ids 0.." +
                              std::to_string(result_.tokens.size() - 1) + " without a gap");
      }
    }
    for (unsigned byte = 0; byte < 256; ++byte) {
      if (may_lack_bytes || id_of_.contains(std::string(1, static_cast<char>(byte)))) continue;
      return bad(file_, "vocabulary: byte " + std::to_string(byte) + " is not a token");
    }
    const auto added = spelled_.find(std::string(kEndOfText));
    if (added != spelled_.end()) result_.end_of_text = added->second;
    result_.end_of_text = find(kEndOfText).value_or(result_.end_of_text);
    return std::move(result_);
  }

 private:
  Status add_token(std::string bytes, const Json& id, const std::string& written) {
    if (!id.is_number_integer() || id < 0 || id >= kTokensMax) {
      return bad(file_, "token '" + written + "': found id " + id.dump() + ", wanted 0.." +
                            std::to_string(kTokensMax - 1));
    }
    const auto number = id.get<int32_t>();
    const auto place = static_cast<size_t>(number);
    if (place >= result_.tokens.size()) result_.tokens.resize(place + 1);
    if (!result_.tokens[place].empty()) {
      return bad(file_, "token '" + written + "': id " + std::to_string(number) +
                            " is already that of '" + result_.tokens[place] + "'");
    }
    result_.tokens[place] = std::move(bytes);
    return {};
  }

  std::optional<int32_t> find(std::string_view written) const {
    const auto bytes = alphabet_.bytes_of(written);
    if (!bytes) return std::nullopt;
    const auto found = id_of_.find(*bytes);
    if (found == id_of_.end()) return std::nullopt;
    return found->second;
  }

  std::filesystem::path file_;
  ByteAlphabet alphabet_;
  BpeVocabulary result_;
  std::unordered_map<std::string, int32_t> id_of_;    // the model's own tokens, by their bytes
  std::unordered_map<std::string, int32_t> spelled_;  // the others
  std::unordered_set<uint64_t> pairs_;
};

// Splits "left right"; nullopt unless there is exactly one space with something on both sides.
std::optional<std::pair<std::string_view, std::string_view>> split_pair(std::string_view line) {
  const size_t space = line.find(' ');
  if (space == std::string_view::npos || space == 0 || space + 1 == line.size()) {
    return std::nullopt;
  }
  if (line.find(' ', space + 1) != std::string_view::npos) return std::nullopt;
  return std::pair(line.substr(0, space), line.substr(space + 1));
}

Status add_merge_lines(Builder& builder, std::string_view rest, const std::filesystem::path& file) {
  if (const auto pointer = text::pointer_file(rest)) {
    return bad(file, "found " + std::string(pointer->found) + "; " + std::string(pointer->advice));
  }
  if (rest.starts_with("\xEF\xBB\xBF")) {
    return bad(file,
               "line 1: begins with a byte-order mark (EF BB BF), which no editor shows, wanted "
               "none; sed -i '1s/^\\xEF\\xBB\\xBF//' removes it");
  }
  for (int64_t number = 1; !rest.empty(); ++number) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || (number == 1 && line.starts_with("#version"))) continue;
    const std::string where = "line " + std::to_string(number);
    const auto pair = split_pair(line);
    if (!pair) return bad(file, where + ": found '" + std::string(line) + "', wanted 'left right'");
    TRAINYARD_TRY(builder.add_merge(file, where, pair->first, pair->second));
  }
  return {};
}

Status add_json_merges(Builder& builder, const std::filesystem::path& file, const Json& merges) {
  if (!merges.is_array()) return bad(file, "/model/merges: wanted a list");
  for (size_t i = 0; i < merges.size(); ++i) {
    const std::string where = "/model/merges/" + std::to_string(i);
    const Json& merge = merges[i];
    std::optional<std::pair<std::string_view, std::string_view>> pair;
    if (merge.is_string()) {
      pair = split_pair(merge.get_ref<const std::string&>());
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
               merge[1].is_string()) {
      pair = {merge[0].get_ref<const std::string&>(), merge[1].get_ref<const std::string&>()};
    }
    if (!pair) return bad(file, where + ": wanted \"left right\" or [\"left\", \"right\"]");
    TRAINYARD_TRY(builder.add_merge(file, where, pair->first, pair->second));
  }
  return {};
}

// A text must not have the tokens that a template puts around it.
Status check_template(const std::filesystem::path& file, const BpeVocabulary& vocabulary) {
  std::vector<int32_t> ids = vocabulary.pipeline.before;
  ids.insert(ids.end(), vocabulary.pipeline.after.begin(), vocabulary.pipeline.after.end());
  for (const int32_t id : ids) {
    const auto token = std::ranges::find(vocabulary.added, id, &AddedToken::id);
    if (token == vocabulary.added.end() || !token->special) {
      return bad(file, "/post_processor: found token id " + std::to_string(id) +
                           " around each text, wanted the id of a special token of /added_tokens");
    }
  }
  return {};
}

}  // namespace

std::optional<std::string> bytes_of_written(std::string_view written) {
  return ByteAlphabet().bytes_of(written);
}

Status check_no_text_has(const std::string& where, const BpeVocabulary& vocabulary,
                         const std::unordered_set<int32_t>& ids, const std::string& advice) {
  const auto refuse = [&](int32_t id, const std::string& found) {
    return Error{ErrorCode::kInvalidData,
                 where + ": found token " + std::to_string(id) + " '" +
                     on_one_line(vocabulary.tokens[static_cast<size_t>(id)]) + "', " + found +
                     ", wanted a token to which no text is encoded; " + advice};
  };
  std::unordered_set<int32_t> special;
  for (const AddedToken& token : vocabulary.added) {
    if (token.special) special.insert(token.id);
    if (!token.special && ids.contains(token.id))
      return refuse(token.id, "an added token that is not special");
  }
  for (const int32_t id : vocabulary.whole) {
    if (!ids.contains(id)) continue;
    if (vocabulary.tokens[static_cast<size_t>(id)].size() == 1)
      return refuse(id, "the token of a byte");
    if (vocabulary.pipeline.ignore_merges && !special.contains(id))
      return refuse(id, "a word that ignore_merges looks up");
  }
  for (size_t rank = 0; rank < vocabulary.merges.size(); ++rank) {
    const int32_t id = vocabulary.merges[rank].result;
    if (ids.contains(id)) return refuse(id, "the result of merge " + std::to_string(rank));
  }
  return {};
}

Result<BpeVocabulary> read_gpt2_vocabulary(const std::filesystem::path& vocabulary_file,
                                           const std::filesystem::path& merges_file) {
  TRAINYARD_ASSIGN(const std::string vocabulary, read_file(vocabulary_file, kFileBytesMax));
  TRAINYARD_ASSIGN(const std::string merges, read_file(merges_file, kFileBytesMax));
  return parse_gpt2_vocabulary(vocabulary, merges, vocabulary_file, merges_file);
}

Result<BpeVocabulary> parse_gpt2_vocabulary(std::string_view vocabulary, std::string_view merges,
                                            const std::filesystem::path& vocabulary_name,
                                            const std::filesystem::path& merges_name) {
  TRAINYARD_ASSIGN(const Json tokens, parse_json(vocabulary, vocabulary_name));
  Builder builder(vocabulary_name);
  TRAINYARD_TRY(builder.add_tokens(tokens, {std::string(kEndOfText)}));
  TRAINYARD_TRY(add_merge_lines(builder, merges, merges_name));
  TRAINYARD_ASSIGN(BpeVocabulary tables, std::move(builder).finish(false));
  return tables;
}

Result<BpeVocabulary> read_tokenizer_json(const std::filesystem::path& file) {
  TRAINYARD_ASSIGN(const std::string text, read_file(file, kFileBytesMax));
  return parse_tokenizer_json(text, file);
}

Result<BpeVocabulary> parse_tokenizer_json(std::string_view text,
                                           const std::filesystem::path& file) {
  TRAINYARD_ASSIGN(const Json root, parse_json(text, file));
  if (!root.is_object() || !root.contains("model") || !root["model"].is_object()) {
    return bad(file, "/model: wanted an object; is this a tokenizer.json?");
  }
  TRAINYARD_ASSIGN(Pipeline pipeline, pipeline_of(file, root));
  TRAINYARD_ASSIGN(std::vector<AddedToken> added, added_tokens_of(file, root));
  std::unordered_set<std::string> as_spelled;
  for (const AddedToken& token : added)
    as_spelled.insert(token.content);
  const Json& model = root["model"];
  Builder builder(file);
  TRAINYARD_TRY(builder.add_tokens(model.value("vocab", Json()), as_spelled));
  for (const AddedToken& token : added)
    TRAINYARD_TRY(builder.add_spelled(token.content, token.id));
  TRAINYARD_TRY(add_json_merges(builder, file, model.value("merges", Json())));
  TRAINYARD_ASSIGN(BpeVocabulary vocabulary,
                   std::move(builder).finish(model.value("unk_token", Json()).is_null()));
  vocabulary.added = std::move(added);
  vocabulary.pipeline = std::move(pipeline);
  TRAINYARD_TRY(check_template(file, vocabulary));
  std::unordered_set<int32_t> special;
  for (const AddedToken& token : vocabulary.added) {
    if (token.special) special.insert(token.id);
  }
  TRAINYARD_TRY(
      check_no_text_has(file.string() + ": /added_tokens", vocabulary, special,
                        "give it a content and an id of its own, or set special to false"));
  return vocabulary;
}

}  // namespace trainyard::data

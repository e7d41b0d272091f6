#include "worker/data/text/pipeline_json.h"

#include <algorithm>
#include <array>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <utility>

namespace trainyard::data {
namespace {

using Json = nlohmann::json;

constexpr size_t kShownBytes = 200;
constexpr size_t kStepsMax = 64;

/// A part of the file by its JSON pointer.
class Part {
 public:
  Part(const std::filesystem::path& file, std::string pointer, const Json& value)
      : file_(file), pointer_(std::move(pointer)), value_(value) {}

  const Json& value() const { return value_; }
  bool is_null() const { return value_.is_null(); }
  std::string type() const {
    const Json found = value_.is_object() ? value_.value("type", Json()) : Json();
    return found.is_string() ? found.get<std::string>() : "";
  }

  Error refuse(const std::string& wanted) const {
    const std::string shown =
        value_.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, kShownBytes);
    return {ErrorCode::kInvalidData,
            file_.string() + ": " + pointer_ + ": found " + shown + ", wanted " + wanted};
  }

  Part at(const std::string& key) const {
    static const Json kNothing;
    const bool there = value_.is_object() && value_.contains(key);
    return {file_, pointer_ + "/" + key, there ? value_[key] : kNothing};
  }

  /// Refuses members that are not among `known`: they may say how texts are encoded.
  Status only(std::initializer_list<std::string_view> known) const {
    if (!value_.is_object()) return refuse("an object");
    for (const auto& [key, value] : value_.items()) {
      if (value.is_null() || std::ranges::find(known, key) != known.end()) continue;
      return at(key).refuse("none: this version does not know it");
    }
    return {};
  }

  /// An absent member is `fallback`, or refused where the tokenizers library refuses it.
  Result<bool> flag(const std::string& key, std::optional<bool> fallback = std::nullopt) const {
    const Part member = at(key);
    if (member.is_null() && fallback) return *fallback;
    if (member.value().is_boolean()) return member.value().get<bool>();
    return member.refuse("true or false");
  }

  /// The elements of the list `key`.
  Result<std::vector<Part>> list(const std::string& key) const {
    const Part member = at(key);
    if (!member.value().is_array() || member.value().size() > kStepsMax) {
      return member.refuse("a list of at most " + std::to_string(kStepsMax));
    }
    std::vector<Part> parts;
    for (size_t i = 0; i < member.value().size(); ++i)
      parts.emplace_back(file_, member.pointer_ + "/" + std::to_string(i), member.value()[i]);
    return parts;
  }

 private:
  const std::filesystem::path& file_;
  std::string pointer_;
  const Json& value_;
};

/// Calls `take` for the steps of a part: itself, or those of a Sequence, which has them in `key`.
Status each_step(const Part& part, const char* key,
                 const std::function<Status(const Part&)>& take) {
  if (part.is_null()) return {};
  if (part.type() != "Sequence") return take(part);
  TRAINYARD_TRY(part.only({"type", key}));
  TRAINYARD_ASSIGN(const std::vector<Part> steps, part.list(key));
  for (const Part& step : steps)
    TRAINYARD_TRY(each_step(step, key, take));
  return {};
}

Status read_normalizer(const Part& part, Pipeline& pipeline) {
  return each_step(part, "normalizers", [&](const Part& step) -> Status {
    if (step.type() != "NFC") return step.refuse("null, NFC, or a Sequence of it");
    pipeline.nfc = true;
    return step.only({"type"});
  });
}

Status read_split(const Part& step, TextSplit& rule) {
  TRAINYARD_TRY(step.only({"type", "pattern", "behavior", "invert"}));
  const Part pattern = step.at("pattern");
  TRAINYARD_TRY(pattern.only({"Regex", "String"}));
  const bool is_regex = !pattern.at("Regex").is_null();
  const Part text = pattern.at(is_regex ? "Regex" : "String");
  if (pattern.value().size() != 1 || !text.value().is_string()) {
    return pattern.refuse("{\"Regex\": \"...\"} or {\"String\": \"...\"}");
  }
  rule.kind = is_regex ? TextSplit::Kind::kRegex : TextSplit::Kind::kString;
  rule.pattern = text.value().get<std::string>();
  constexpr std::array<std::pair<std::string_view, SplitBehaviour>, 5> kBehaviours = {
      {{"Isolated", SplitBehaviour::kIsolated},
       {"Removed", SplitBehaviour::kRemoved},
       {"MergedWithPrevious", SplitBehaviour::kMergedWithPrevious},
       {"MergedWithNext", SplitBehaviour::kMergedWithNext},
       {"Contiguous", SplitBehaviour::kContiguous}}};
  const Part behaviour = step.at("behavior");
  const auto known = std::ranges::find_if(
      kBehaviours, [&](const auto& one) { return behaviour.value() == one.first; });
  if (known == kBehaviours.end()) {
    return behaviour.refuse("Isolated, Removed, MergedWithPrevious, MergedWithNext or Contiguous");
  }
  rule.behaviour = known->second;
  TRAINYARD_ASSIGN(rule.invert, step.flag("invert"));
  const auto compiled = PreTokenizer::create({.splits = {rule}, .gpt2_words = false});
  if (!compiled)
    return text.refuse("an expression that can be translated: " + compiled.error().message);
  return {};
}

Status read_pre_tokenizer(const Part& part, PreTokenization& cuts) {
  bool has_bytes = false;
  const auto read = [&](const Part& step) -> Status {
    if (has_bytes) return step.refuse("nothing behind the ByteLevel step");
    if (cuts.splits.size() == kStepsMax && step.type() != "ByteLevel") {
      return step.refuse("at most " + std::to_string(kStepsMax) + " steps before ByteLevel");
    }
    TextSplit rule;
    if (step.type() == "Split") {
      TRAINYARD_TRY(read_split(step, rule));
    } else if (step.type() == "Digits") {
      TRAINYARD_TRY(step.only({"type", "individual_digits"}));
      rule.kind = TextSplit::Kind::kDigits;
      TRAINYARD_ASSIGN(rule.one_digit, step.flag("individual_digits"));
    } else if (step.type() == "ByteLevel") {
      TRAINYARD_TRY(step.only({"type", "add_prefix_space", "trim_offsets", "use_regex"}));
      has_bytes = true;
      TRAINYARD_ASSIGN(cuts.prefix_space, step.flag("add_prefix_space"));
      TRAINYARD_ASSIGN(cuts.gpt2_words, step.flag("use_regex", true));
      return {};
    } else {
      return step.refuse("Split, Digits or ByteLevel");
    }
    cuts.splits.push_back(std::move(rule));
    return {};
  };
  TRAINYARD_TRY(each_step(part, "pretokenizers", read));
  if (!has_bytes) return part.refuse("ByteLevel, or a Sequence that ends in it");
  return {};
}

/// The ids of a special token of a template.
Result<std::vector<int32_t>> template_ids(const Part& step, const Part& piece) {
  const Part token = piece.at("SpecialToken");
  TRAINYARD_TRY(token.only({"id", "type_id"}));
  const Json name = token.at("id").value();
  const Part entry = step.at("special_tokens").at(name.is_string() ? name.get<std::string>() : "");
  TRAINYARD_TRY(entry.only({"id", "ids", "tokens"}));
  TRAINYARD_ASSIGN(const std::vector<Part> ids, entry.list("ids"));
  std::vector<int32_t> numbers;
  for (const Part& id : ids) {
    const bool good = id.value().is_number_unsigned() && id.value().get<uint64_t>() < uint64_t{1}
                                                                                          << 31;
    if (!good) return id.refuse("a token's id");
    numbers.push_back(id.value().get<int32_t>());
  }
  return numbers;
}

Status read_template(const Part& step, Pipeline& pipeline) {
  TRAINYARD_TRY(step.only({"type", "single", "pair", "special_tokens"}));
  if (!pipeline.before.empty() || !pipeline.after.empty()) {
    return step.refuse("one TemplateProcessing with tokens, as the tokenizers library");
  }
  TRAINYARD_ASSIGN(const std::vector<Part> pieces, step.list("single"));
  std::vector<int32_t> before;
  std::vector<int32_t> after;
  bool behind_text = false;
  for (const Part& piece : pieces) {
    TRAINYARD_TRY(piece.only({"SpecialToken", "Sequence"}));
    if (piece.value().size() != 1) return piece.refuse("a SpecialToken or a Sequence");
    if (!piece.at("Sequence").is_null()) {
      if (behind_text || piece.at("Sequence").at("id").value() != "A") {
        return piece.refuse("the text once, as the Sequence A");
      }
      behind_text = true;
      continue;
    }
    TRAINYARD_ASSIGN(const std::vector<int32_t> ids, template_ids(step, piece));
    std::vector<int32_t>& side = behind_text ? after : before;
    side.insert(side.end(), ids.begin(), ids.end());
  }
  if (!behind_text) return step.at("single").refuse("the text, as the Sequence A");
  pipeline.before = std::move(before);
  pipeline.after = std::move(after);
  return {};
}

Status read_post_processor(const Part& part, Pipeline& pipeline) {
  return each_step(part, "processors", [&](const Part& step) -> Status {
    // It says where a token's text lies, not which token.
    if (step.type() == "ByteLevel")
      return step.only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    if (step.type() == "TemplateProcessing") return read_template(step, pipeline);
    return step.refuse("null, ByteLevel, TemplateProcessing, or a Sequence of them");
  });
}

Status check_decoder(const Part& part) {
  return each_step(part, "decoders", [](const Part& step) -> Status {
    if (step.type() != "ByteLevel") return step.refuse("null or ByteLevel");
    return step.only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  });
}

Status read_model(const Part& model, Pipeline& pipeline) {
  if (model.type() != "BPE") return model.at("type").refuse("\"BPE\", of bytes");
  TRAINYARD_TRY(
      model.only({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                  "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"}));
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const Part found = model.at(affix);
    if (!found.is_null() && found.value() != "") return found.refuse("none");
  }
  if (!model.at("dropout").is_null()) return model.at("dropout").refuse("null");
  TRAINYARD_ASSIGN(const bool byte_fallback, model.flag("byte_fallback", false));
  if (byte_fallback) return model.at("byte_fallback").refuse("false");
  TRAINYARD_ASSIGN(pipeline.ignore_merges, model.flag("ignore_merges", false));
  return {};
}

}  // namespace

Result<Pipeline> pipeline_of(const std::filesystem::path& file, const Json& root) {
  const Part all(file, "", root);
  TRAINYARD_TRY(all.only({"version", "truncation", "padding", "added_tokens", "normalizer",
                          "pre_tokenizer", "post_processor", "decoder", "model"}));
  const Part version = all.at("version");
  if (!version.is_null() && version.value() != "1.0") return version.refuse("\"1.0\"");
  Pipeline pipeline;
  TRAINYARD_TRY(read_model(all.at("model"), pipeline));
  TRAINYARD_TRY(read_normalizer(all.at("normalizer"), pipeline));
  TRAINYARD_TRY(read_pre_tokenizer(all.at("pre_tokenizer"), pipeline.cuts));
  TRAINYARD_TRY(read_post_processor(all.at("post_processor"), pipeline));
  TRAINYARD_TRY(check_decoder(all.at("decoder")));
  return pipeline;
}

}  // namespace trainyard::data

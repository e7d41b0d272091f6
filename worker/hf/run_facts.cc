#include "worker/hf/run_facts.h"

#include <set>

#include <nlohmann/json.hpp>

#include "common/api/decode.h"
#include "common/api/numerics.h"
#include "common/text/bounded_json.h"

namespace trainyard::hf {
namespace {

using nlohmann::json;

constexpr int kFactsDepthMax = 64;
constexpr char kImported[] = "imported";
constexpr char kTokenizerName[] = "tokenizerName";
constexpr char kTokenizerHash[] = "tokenizerHash";

json object_of(std::string_view text) {
  auto parsed = parse_bounded_json<json>(text, kFactsDepthMax);
  return parsed && parsed->is_object() ? *std::move(parsed) : json::object();
}

json member_of(const json& object, const char* key) {
  return object.is_object() ? object.value(key, json()) : json();
}

std::string text_of(const json& value) {
  return value.is_string() ? value.get<std::string>() : std::string();
}

std::string dump_of(const json& value) { return value.is_object() ? value.dump() : std::string(); }

std::string first_difference(const char* file, const std::string& found_text,
                             const std::string& wanted_text) {
  const json found = object_of(found_text);
  const json wanted = object_of(wanted_text);
  std::set<std::string> keys;
  for (const json* side : {&found, &wanted}) {
    for (const auto& [key, value] : side->items())
      keys.insert(key);
  }
  const auto shown = [](const json& object, const std::string& key) {
    return object.contains(key) ? object[key].dump().substr(0, 200) : std::string("nothing");
  };
  for (const std::string& key : keys) {
    if (found.value(key, json()) == wanted.value(key, json())) continue;
    return std::string(file) + ": " + key + ": found " + shown(found, key) + ", wanted " +
           shown(wanted, key);
  }
  return "";
}

}  // namespace

Result<api::EngineSpec> spec_of_run(const checkpoint::StateStore& stored) {
  TRAINYARD_ASSIGN(api::EngineSpec spec,
                   api::decode_engine(stored.manifest().config_json,
                                      {.file = stored.place() + "/manifest.json",
                                       .unknown_keys = api::UnknownKeys::kIgnore}));
  spec.numerics = api::as_trained(spec);
  return spec;
}

std::string with_run_facts(std::string config_json, const RunFacts& facts) {
  auto root = nlohmann::ordered_json::parse(config_json, nullptr, false);
  if (!root.is_object()) return config_json;
  const auto has = [&](const char* key) { return root.contains(key) && root[key].is_object(); };
  if (has("model")) {
    auto& model = root["model"];
    if (facts.imported != ImportedFacts()) {
      model[kImported] = nlohmann::ordered_json::object();
      for (const auto& [key, text] : {std::pair("config", &facts.imported.config),
                                      std::pair("generation", &facts.imported.generation)}) {
        if (!text->empty()) model[kImported][key] = nlohmann::ordered_json::parse(*text);
      }
    }
  }
  if (has("data") && !facts.tokenizer_hash.empty()) {
    root["data"][kTokenizerName] = facts.tokenizer;
    root["data"][kTokenizerHash] = facts.tokenizer_hash;
  }
  return root.dump();
}

RunFacts run_facts_of(std::string_view config_json) {
  const json root = object_of(config_json);
  const json model = member_of(root, "model");
  const json data = member_of(root, "data");
  const json imported = member_of(model, kImported);
  RunFacts facts;
  facts.imported = {.config = dump_of(member_of(imported, "config")),
                    .generation = dump_of(member_of(imported, "generation"))};
  facts.tokenizer = text_of(member_of(data, kTokenizerName));
  facts.tokenizer_hash = text_of(member_of(data, kTokenizerHash));
  return facts;
}

std::vector<std::string> tokenizer_places(std::string_view config_json) {
  const json root = object_of(config_json);
  std::vector<std::string> places;
  for (const auto& [part, key] : {std::pair("data", "tokenizer"), std::pair("model", "import")}) {
    std::string place = text_of(member_of(member_of(root, part), key));
    if (!place.empty()) places.push_back(std::move(place));
  }
  return places;
}

std::string difference_of(const ImportedFacts& found, const ImportedFacts& wanted) {
  std::string difference = first_difference("config.json", found.config, wanted.config);
  if (!difference.empty()) return difference;
  return first_difference("generation_config.json", found.generation, wanted.generation);
}

}  // namespace trainyard::hf

// Folders of decoders of Llama's kind (tests/fixtures/decoders, as transformers saves them), in and
// out.

#include <fstream>
#include <map>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/paths.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/whole_tensor.h"
#include "worker/hf/config.h"
#include "worker/hf/model_folder.h"
#include "worker/model/family.h"
#include "worker/safetensors/safetensors.h"

namespace trainyard::hf {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

std::filesystem::path fixture(const std::string& name) {
  return testing_support::source_path("tests/fixtures/decoders/" + name);
}

json config_of(const std::filesystem::path& folder) {
  std::ifstream file(folder / "config.json");
  return json::parse(file);
}

std::string fault_of(const json& config) {
  const auto parsed = parse_config(config.dump());
  return parsed ? "accepted" : parsed.error().message;
}

std::map<std::string, std::vector<std::byte>> bytes_of(const std::filesystem::path& folder) {
  std::map<std::string, std::vector<std::byte>> all;
  const auto file = safetensors::File::open(folder / "model.safetensors");
  EXPECT_TRUE(file.has_value());
  for (const safetensors::Entry& entry : file->header().entries) {
    const auto data = file->data(entry);
    all[entry.name] = {data.begin(), data.end()};
  }
  return all;
}

class DecoderFolderTest : public ::testing::TestWithParam<const char*> {};

TEST_P(DecoderFolderTest, GoesOutAsItCameIn) {
  const std::filesystem::path from = fixture(GetParam());
  const auto model = load_model(from);
  ASSERT_TRUE(model.has_value()) << model.error().message;
  const testing_support::TemporaryDirectory directory;
  const std::filesystem::path out = directory.path() / "out";
  // Pieces end within tensors that are one parameter of ours.
  const Status written =
      export_model(out, (*model)->spec(), testing_support::tensors_in_pieces(**model, 37),
                   std::nullopt, {.imported = (*model)->facts()});
  ASSERT_TRUE(written) << written.error().message;
  EXPECT_EQ(bytes_of(out), bytes_of(from));
  const auto again = load_model(out);
  ASSERT_TRUE(again.has_value()) << again.error().message;
  EXPECT_EQ((*again)->spec(), (*model)->spec());
  EXPECT_EQ((*again)->facts(), (*model)->facts());
  EXPECT_TRUE((*again)->notes().empty());
}

/// `model` as a folder with weights of that form.
std::unique_ptr<HfModel> exported(const HfModel& model, const std::filesystem::path& out,
                                  const WeightsForm& form) {
  const Status written =
      export_model(out, model.spec(), testing_support::tensors_in_pieces(model, 37), std::nullopt,
                   {.imported = model.facts()}, form);
  EXPECT_TRUE(written) << written.error().message;
  auto again = load_model(out);
  EXPECT_TRUE(again.has_value()) << again.error().message;
  return again ? *std::move(again) : nullptr;
}

TEST_P(DecoderFolderTest, ANarrowTypeIsExportedAsItWasImported) {
  const auto model = load_model(fixture(GetParam()));
  ASSERT_TRUE(model.has_value()) << model.error().message;
  for (const auto& [dtype, word] :
       {std::pair{DType::kBFloat16, "bfloat16"}, {DType::kFloat16, "float16"}}) {
    const testing_support::TemporaryDirectory directory;
    const auto narrow = exported(**model, directory.path() / "narrow", {.dtype = dtype});
    ASSERT_NE(narrow, nullptr);
    EXPECT_EQ(config_of(directory.path() / "narrow").at("dtype"), word);
    EXPECT_EQ(config_of(directory.path() / "narrow").at("torch_dtype"), word);
    ASSERT_NE(exported(*narrow, directory.path() / "again", {.dtype = dtype}), nullptr);
    EXPECT_EQ(bytes_of(directory.path() / "again"), bytes_of(directory.path() / "narrow"));
    // Half the bytes: the type is the file's, not the name alone.
    for (const auto& [name, bytes] : bytes_of(directory.path() / "narrow"))
      EXPECT_EQ(2 * bytes.size(), bytes_of(fixture(GetParam())).at(name).size()) << name;
  }
}

TEST_P(DecoderFolderTest, PartsWithAnIndexAreTheModel) {
  const auto model = load_model(fixture(GetParam()));
  ASSERT_TRUE(model.has_value()) << model.error().message;
  int64_t bytes = 0;
  for (const auto& [name, data] : bytes_of(fixture(GetParam())))
    bytes += std::ssize(data);
  const testing_support::TemporaryDirectory directory;
  const std::filesystem::path out = directory.path() / "parts";
  const auto again = exported(**model, out, {.part_bytes_max = bytes / 4});
  ASSERT_NE(again, nullptr);
  EXPECT_FALSE(std::filesystem::exists(out / "model.safetensors"));
  std::ifstream file(out / "model.safetensors.index.json");
  const json index = json::parse(file);
  EXPECT_EQ(index.at("metadata").at("total_size"), bytes);
  std::map<std::string, std::vector<std::byte>> all;
  std::set<std::string> parts;
  for (const auto& [name, part] : index.at("weight_map").items()) {
    parts.insert(part);
    const auto opened = safetensors::File::open(out / part.get<std::string>());
    ASSERT_TRUE(opened.has_value()) << opened.error().message;
    const auto* entry = opened->find(name);
    ASSERT_NE(entry, nullptr) << name << " in " << part;
    const auto data = opened->data(*entry);
    all[name] = {data.begin(), data.end()};
  }
  EXPECT_GE(parts.size(), 4U);
  EXPECT_EQ(all, bytes_of(fixture(GetParam())));
  // Nothing of others is replaced.
  EXPECT_EQ(
      export_model(out, again->spec(), testing_support::tensors_in_pieces(*again, 37)).error().code,
      ErrorCode::kAlreadyExists);
}

TEST_P(DecoderFolderTest, EitherFormOfRotaryPositionsIsEnough) {
  const auto model = load_model(fixture(GetParam()));
  ASSERT_TRUE(model.has_value()) << model.error().message;
  const json both = json::parse(*make_config((*model)->spec(), {}, std::nullopt));
  json now = both;
  now.erase("rope_theta");
  now.erase("rope_scaling");
  json before = both;
  before.erase("rope_parameters");
  json oldest = before;  // "type" was the key's first name
  if (!oldest["rope_scaling"].is_null()) {
    oldest["rope_scaling"]["type"] = oldest["rope_scaling"]["rope_type"];
    oldest["rope_scaling"].erase("rope_type");
  }
  for (const json& config : {both, now, before, oldest}) {
    const auto parsed = parse_config(config.dump());
    ASSERT_TRUE(parsed.has_value()) << parsed.error().message;
    EXPECT_EQ(parsed->spec, (*model)->spec()) << config;
    EXPECT_TRUE(parsed->notes.empty());
  }
}

INSTANTIATE_TEST_SUITE_P(Models, DecoderFolderTest,
                         ::testing::Values("llama", "llama-biases-tied", "llama-linear",
                                           "llama-llama3", "llama-yarn", "llama-one-key-head",
                                           "qwen2", "qwen3", "mistral", "mistral-window",
                                           "qwen2-window", "qwen3-yarn-window"),
                         [](const auto& tested) {
                           std::string name(tested.param);
                           std::erase(name, '-');
                           return name;
                         });

TEST(DecoderConfigTest, HeadsOfOtherTasksArePassedOverAndNamed) {
  const auto model = load_model(fixture("llama"));
  ASSERT_TRUE(model.has_value()) << model.error().message;
  for (const auto& [name, accepted] : {std::pair{"score.weight", true},
                                       {"v_head.summary.bias", true},
                                       {"model.norm.bias", false}}) {
    const testing_support::TemporaryDirectory directory;
    const std::filesystem::path out = directory.path() / "parts";
    ASSERT_NE(exported(**model, out, {.part_bytes_max = 1 << 30}), nullptr);
    // A second part, of which the index knows.
    std::filesystem::rename(out / "model.safetensors", out / "one.safetensors");
    const safetensors::TensorInfo info{name, DType::kFloat32, {2}};
    ASSERT_TRUE(safetensors::write_file(out / "two.safetensors", std::span(&info, 1),
                                        {{"format", "pt"}},
                                        [](size_t, const safetensors::WriteAt& write) {
                                          const float values[] = {1, 2};
                                          return write(0, std::as_bytes(std::span(values)));
                                        }));
    std::ofstream(out / "model.safetensors.index.json")
        << json{{"weight_map", {{"lm_head.weight", "one.safetensors"}, {name, "two.safetensors"}}}};
    const auto again = load_model(out);
    ASSERT_EQ(again.has_value(), accepted) << name;
    if (accepted) {
      EXPECT_THAT((*again)->notes(), testing::ElementsAre("skipped " + std::string(name) +
                                                          ", the head of another task"));
    } else {
      EXPECT_THAT(again.error().message, HasSubstr("unexpected: " + std::string(name)));
    }
  }
}

TEST(DecoderConfigTest, AFileWithoutThetaTakesTheClassDefaultAndSaysSo) {
  json config = config_of(fixture("llama"));
  config.erase("rope_parameters");
  const auto parsed = parse_config(config.dump());
  ASSERT_TRUE(parsed.has_value()) << parsed.error().message;
  EXPECT_EQ(parsed->spec.rope_theta, 10000);
  EXPECT_THAT(parsed->notes, testing::ElementsAre(HasSubstr("has no rope_theta")));
}

TEST(DecoderConfigTest, WhatIsNotComputedIsRefusedByName) {
  const json good = config_of(fixture("llama"));
  struct Case {
    json change;
    const char* wanted;
  };
  const Case cases[] = {
      {{{"rope_theta", 501.0}}, "rope_theta: found 501.0, wanted what rope_parameters.rope_theta"},
      {{{"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}}},
       "rope_scaling: found {\"factor\":2.0,\"type\":\"linear\"}, wanted what rope_parameters"},
      {{{"rope_parameters", {{"rope_type", "dynamic"}, {"factor", 2.0}}}},
       "rope_parameters.rope_type: found \"dynamic\""},
      {{{"rope_parameters", {{"rope_type", "longrope"}}}},
       "rope_parameters.rope_type: found \"longrope\""},
      {{{"rope_parameters", {{"rope_type", "yarn"}, {"mscale", 1.0}}}},
       "rope_parameters.mscale: found 1.0"},
      {{{"rope_parameters", {{"partial_rotary_factor", 0.5}}}},
       "rope_parameters.partial_rotary_factor: found 0.5"},
      {{{"rope_parameters", {{"rope_theta", -1}}}}, "rope_parameters.rope_theta: found -1"},
      {{{"rope_parameters", 3}}, "rope_parameters: found 3, wanted an object"},
      {{{"hidden_act", "gelu"}}, "hidden_act: found \"gelu\", wanted \"silu\""},
      {{{"num_attention_heads", 5}, {"head_dim", nullptr}, {"num_key_value_heads", 5}},
       "num_attention_heads: found 5"},
      {{{"num_key_value_heads", 4}}, "kvHeads: found 4, wanted a divisor of heads = 6"},
      {{{"head_dim", 5}}, "headDim: found 5, wanted an even number"},
      {{{"quantization_config", {{"bits", 4}}}}, "quantization_config: found"},
      {{{"model_type", "mistral"}, {"sliding_window", 0}}, "sliding_window: found 0"},
      {{{"use_sliding_window", true}, {"sliding_window", 8}}, "sliding_window: found 8"},
      {{{"model_type", "qwen2"},
        {"use_sliding_window", true},
        {"sliding_window", 8},
        {"layer_types", {"sliding_attention", "full_attention"}}},
       "layer_types: found"},
      {{{"model_type", "qwen2"}, {"layer_types", {"full_attention", "sliding_attention"}}},
       "layer_types: found"},
      {{{"model_type", "mistral"},
        {"sliding_window", 8},
        {"layer_types", {"full_attention", "sliding_attention"}}},
       "layer_types: found"},
      {{{"model_type", "qwen2"},
        {"use_sliding_window", true},
        {"sliding_window", 8},
        {"max_window_layers", -1}},
       "max_window_layers: found -1"},
      {{{"model_type", "qwen2"}, {"attention_bias", true}}, "attentionBias: found true"},
      {{{"layer_types", {"full_attention", "linear_attention"}}}, "layer_types: found"},
      {{{"model_type", "gemma"}}, "model_type: found gemma"},
  };
  for (const Case& c : cases) {
    json config = good;
    config.update(c.change);
    std::string fault = fault_of(config);
    if (fault == "accepted") {
      const auto built = engine::build_model(parse_config(config.dump())->spec);
      if (!built) fault = built.error().message;
    }
    EXPECT_THAT(fault, HasSubstr(c.wanted)) << c.change;
  }
}

TEST(DecoderConfigTest, MistralHasAWindowWhereNothingIsSaid) {
  json config = config_of(fixture("mistral"));
  config.erase("sliding_window");
  config["max_position_embeddings"] = 4097;
  EXPECT_EQ(parse_config(config.dump())->spec.sliding_window, 4096);
  config["max_position_embeddings"] = 4096;
  EXPECT_EQ(parse_config(config.dump())->spec.sliding_window, 0);
}

TEST(DecoderConfigTest, QwenHasAWindowInTheBlocksThatConfigNames) {
  struct Case {
    json change;
    int64_t window, full_layers;
  };
  const Case cases[] = {
      {{{"use_sliding_window", false}, {"sliding_window", 8}}, 0, 0},
      {{{"use_sliding_window", true}, {"sliding_window", nullptr}}, 0, 0},
      {{{"use_sliding_window", true}, {"sliding_window", 8}}, 0, 0},  // the first 28 are full
      {{{"use_sliding_window", true}, {"sliding_window", 64}, {"max_window_layers", 0}}, 0, 0},
      {{{"use_sliding_window", true}, {"sliding_window", 8}, {"max_window_layers", 0}}, 8, 0},
      {{{"use_sliding_window", true}, {"sliding_window", 8}, {"max_window_layers", 1}}, 8, 1},
      {{{"use_sliding_window", true},
        {"sliding_window", 8},
        {"max_window_layers", 2},
        {"layer_types", {"full_attention", "sliding_attention"}}},
       8,
       1},
  };
  for (const char* const name : {"qwen2", "qwen3"}) {
    for (const Case& c : cases) {
      json config = config_of(fixture(name));
      config.erase("layer_types");
      config.erase("max_window_layers");
      config.update(c.change);
      const auto parsed = parse_config(config.dump());
      ASSERT_TRUE(parsed.has_value()) << parsed.error().message;
      EXPECT_EQ(parsed->spec.sliding_window, c.window) << config;
      EXPECT_EQ(parsed->spec.full_layers, c.full_layers) << config;
      // What is written says the same.
      const auto again = parse_config(*make_config(parsed->spec, parsed->facts, std::nullopt));
      ASSERT_TRUE(again.has_value()) << again.error().message;
      EXPECT_EQ(again->spec, parsed->spec) << config;
    }
  }
}

/// A copy of a fixture whose config.json says something else of the head.
Result<std::unique_ptr<HfModel>> load_with(const testing_support::TemporaryDirectory& directory,
                                           const std::string& name, bool tied) {
  std::filesystem::copy_file(fixture(name) / "model.safetensors",
                             directory.path() / "model.safetensors");
  json config = config_of(fixture(name));
  config["tie_word_embeddings"] = tied;
  std::ofstream(directory.path() / "config.json") << config;
  return load_model(directory.path());
}

TEST(DecoderImportTest, WhetherTheHeadIsTheEmbeddingIsWhatTheFilesSay) {
  const testing_support::TemporaryDirectory apart;
  const auto untied = load_with(apart, "llama", true);
  ASSERT_TRUE(untied.has_value()) << untied.error().message;
  EXPECT_FALSE((*untied)->spec().tie_embeddings);
  EXPECT_THAT((*untied)->notes(), testing::ElementsAre(HasSubstr("lm_head.weight differs")));
  const testing_support::TemporaryDirectory together;
  const auto tied = load_with(together, "llama-biases-tied", false);
  ASSERT_TRUE(tied.has_value()) << tied.error().message;
  EXPECT_TRUE((*tied)->spec().tie_embeddings);
  EXPECT_THAT((*tied)->notes(), testing::ElementsAre(HasSubstr("have no lm_head.weight")));
}

}  // namespace
}  // namespace trainyard::hf

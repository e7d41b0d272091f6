// Folders that are almost a model: what is wrong with each is said by name.

#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/paths.h"
#include "tests/support/temporary_directory.h"
#include "tests/unit/worker/hf/stored_tensors.h"
#include "worker/data/text/tokenizer.h"
#include "worker/hf/model_folder.h"

namespace trainyard::hf {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

json json_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  return json::parse(file);
}

/// A model of Qwen3's kind: 2 layers, 6 query heads and 2 key heads of 10, a head of its own.
class ModelFolder {
 public:
  ModelFolder() : config(json_of(kFixture / "config.json")) {
    tensors = read_tensors(kFixture / "model.safetensors");
  }
  void rename(const std::string& from, const std::string& to) {
    tensors[to] = tensors.at(from);
    tensors.erase(from);
  }
  /// Gives a tensor another shape, filled up with zeros.
  void reshape(const std::string& name, std::vector<int64_t> shape) {
    Stored& tensor = tensors[name];
    int64_t elements = 1;
    for (const int64_t size : shape)
      elements *= size;
    tensor.info.shape = std::move(shape);
    tensor.data.resize(static_cast<size_t>(elements * size_of(tensor.info.dtype)));
  }
  void write(const std::string& name, const std::string& content) const {
    std::ofstream(folder_.path() / name) << content;
  }
  void save() const {
    write("config.json", config.dump());
    write_tensors(folder_.path() / "model.safetensors", tensors);
  }
  void move_weights_away() const {
    std::filesystem::rename(folder_.path() / "model.safetensors",
                            folder_.path() / "part.safetensors");
  }
  const std::filesystem::path& path() const { return folder_.path(); }
  std::string fault() const {
    const auto loaded = load_model(folder_.path());
    return loaded ? "accepted" : loaded.error().message;
  }

  json config;
  StoredTensors tensors;

 private:
  static inline const std::filesystem::path kFixture =
      testing_support::source_path("tests/fixtures/decoders/qwen3");
  testing_support::TemporaryDirectory folder_;
};

constexpr char kLayer[] = "model.layers.0.";

TEST(BadModelTest, TensorsThatAreNotTheModelsAreNamed) {
  const std::string q = std::string(kLayer) + "self_attn.q_proj.weight";
  const std::string k = std::string(kLayer) + "self_attn.k_proj.weight";
  const std::string up = std::string(kLayer) + "mlp.up_proj.weight";
  struct Case {
    std::function<void(ModelFolder&)> change;
    std::string wanted;
  };
  const std::vector<Case> cases = {
      {[&](auto& f) { f.tensors.erase(k); }, "missing: layers.0.self_attn.k_proj.weight [20,24]"},
      {[&](auto& f) { f.tensors.erase(up); }, "missing: layers.0.mlp.up_proj.weight [40,24]"},
      {[&](auto& f) {
         f.reshape(k, {60, 24});
       },
       "k_proj.weight is [60,24], config.json makes it [20,24]"},
      {[&](auto& f) { f.config["num_key_value_heads"] = 6; },
       "k_proj.weight is [20,24], config.json makes it [60,24]"},
      {[&](auto& f) { f.config["head_dim"] = 4; },
       "q_proj.weight is [60,24], config.json makes it [24,24]"},
      {[&](auto& f) {
         f.reshape(up, {24, 40});
       },
       "up_proj.weight is [24,40], config.json makes it [40,24]"},
      {[&](auto& f) { f.rename(q, std::string(kLayer) + "self_attn.qkv_proj.weight"); },
       "unexpected: model.layers.0.self_attn.qkv_proj.weight"},
      {[&](auto& f) { f.tensors.erase(std::string(kLayer) + "self_attn.q_norm.weight"); },
       "missing: layers.0.self_attn.q_norm.weight [10]"},
      {[&](auto& f) { f.reshape(std::string(kLayer) + "self_attn.k_norm.weight", {20}); },
       "k_norm.weight is [20], config.json makes it [10]"},
      {[&](auto& f) { f.reshape(std::string(kLayer) + "self_attn.q_proj.bias", {60}); },
       "unexpected: model.layers.0.self_attn.q_proj.bias"},
      {[](auto& f) { f.config["attention_bias"] = true; },
       "missing: layers.0.self_attn.q_proj.bias [60]"},
      {[](auto& f) {
         f.config["num_hidden_layers"] = 1;
         f.config.erase("layer_types");
       },
       "unexpected: model.layers.1.input_layernorm.weight"},
      {[](auto& f) {
         f.config["num_hidden_layers"] = 3;
         f.config.erase("layer_types");
       },
       "missing: layers.2.input_layernorm.weight [24]"},
      {[](auto& f) { f.config["num_hidden_layers"] = 3; },
       "layer_types: found [\"full_attention\",\"full_attention\"], wanted 3 times"},
      {[](auto& f) { f.config["vocab_size"] = 64; },
       "embed_tokens.weight is [61,24], config.json makes it [64,24]"},
      {[](auto& f) {
         f.reshape("lm_head.weight", {62, 24});
       },
       "lm_head.weight is [62,24], config.json makes it [61,24]"},
      {[](auto& f) { f.tensors.erase("model.embed_tokens.weight"); },
       "missing: embed_tokens.weight [61,24]"},
      {[](auto& f) { f.tensors.at("model.norm.weight").info.dtype = DType::kInt32; },
       "model.norm.weight is I32, wanted F32, BF16 or F16"},
      {[&](auto& f) { f.rename(q, q + "_packed"); }, "unexpected: " + q + "_packed"},
      {[&](auto& f) { f.rename(q, "base_model.model." + q); }, "unexpected: base_model.model."},
      {[](auto& f) { f.tensors["norm.weight"] = f.tensors.at("model.norm.weight"); }, "twice: "},
      {[](auto& f) {
         f.reshape("visual.patch_embed.weight", {2, 2});
       },
       "unexpected: visual.patch_embed.weight"},
      {[](auto& f) { f.config["model_type"] = "llama"; },
       "unexpected: model.layers.0.self_attn.k_norm.weight"},
      {[](auto& f) { f.config["model_type"] = "qwen3_moe"; }, "model_type: found qwen3_moe"},
  };
  {
    const ModelFolder good;
    good.save();
    ASSERT_EQ(good.fault(), "accepted");
  }
  for (const Case& c : cases) {
    ModelFolder folder;
    c.change(folder);
    folder.save();
    EXPECT_THAT(folder.fault(), HasSubstr(c.wanted));
  }
}

TEST(BadModelTest, FilesThatAreNotAModelsAreNamed) {
  struct Case {
    std::function<void(const ModelFolder&)> change;
    std::string wanted;
  };
  const std::string index = "model.safetensors.index.json";
  const auto indexed = [&](const char* content) {
    return [content, &index](const ModelFolder& f) {
      f.move_weights_away();
      f.write(index, content);
    };
  };
  const std::vector<Case> cases = {
      {[](auto& f) { std::filesystem::remove(f.path() / "config.json"); }, "config.json"},
      {[](auto& f) { f.write("config.json", "{\"model_type\": \"qwen3\""); },
       "config.json: not JSON"},
      {[](auto& f) { f.write("config.json", "[]"); }, "config.json: not a JSON object"},
      {[](auto& f) { f.write("config.json", "{}"); }, "model_type: found null"},
      {[](auto& f) { f.write("generation_config.json", "[1]"); },
       "generation_config.json: wanted an object"},
      {[](auto& f) { f.write("model.safetensors", "not weights"); }, "model.safetensors"},
      {[](auto& f) {
         std::filesystem::resize_file(
             f.path() / "model.safetensors",
             std::filesystem::file_size(f.path() / "model.safetensors") - 1);
       },
       "model.safetensors"},
      {[](auto& f) {
         std::filesystem::rename(f.path() / "model.safetensors", f.path() / "pytorch_model.bin");
       },
       "has neither model.safetensors nor model.safetensors.index.json; save the model with "
       "safe_serialization=True"},
      {indexed("{"), index + ": not JSON"},
      {indexed("{}"), index + ": weight_map must map tensor names to files of this folder"},
      {indexed(R"({"weight_map": {}})"), index + ": weight_map must map"},
      {indexed(R"({"weight_map": {"lm_head.weight": 1}})"), index + ": weight_map must map"},
      {indexed(R"({"weight_map": {"lm_head.weight": "../part.safetensors"}})"),
       index + ": weight_map must map"},
      {indexed(R"({"weight_map": {"lm_head.weight": "lost.safetensors"}})"), "lost.safetensors"},
  };
  for (const Case& c : cases) {
    ModelFolder folder;
    folder.save();
    c.change(folder);
    EXPECT_THAT(folder.fault(), HasSubstr(c.wanted));
  }
}

/// The tokenizer of tests/fixtures/tokenizer/pipelines.json, whose template puts <s> before a text.
class TokenizerFolder {
 public:
  TokenizerFolder() {
    const json fixture =
        json_of(testing_support::source_path("tests/fixtures/tokenizer/pipelines.json"));
    described = fixture["tokenizer"];
    for (const json& one : fixture["cases"]) {
      if (one["name"] == "template around") described.update(one["change"]);
    }
  }
  void write(const std::string& name, const json& content) const {
    std::ofstream(folder_.path() / name) << content;
  }
  std::string fault() const {
    write("tokenizer.json", described);
    const auto opened = data::open_tokenizer(folder_.path());
    return opened ? "accepted" : opened.error().message;
  }
  json& at(const char* pointer) { return described[json::json_pointer(pointer)]; }

  json described;

 private:
  testing_support::TemporaryDirectory folder_;
};

TEST(BadTokenizerTest, WhatIsWrongIsNamedByItsPlace) {
  struct Case {
    std::function<void(TokenizerFolder&)> change;
    std::string wanted;
  };
  const std::vector<Case> cases = {
      {[](auto& f) { f.at("/model/type") = "WordPiece"; }, "/model/type: found \"WordPiece\""},
      {[](auto& f) { f.at("/model/type") = "Unigram"; }, "/model/type: found \"Unigram\""},
      {[](auto& f) { f.at("/model/byte_fallback") = true; }, "/model/byte_fallback: found true"},
      {[](auto& f) { f.at("/model/merges/0") = "\u0120 zz"; },
       "/model/merges/0: 'zz' is not in the vocabulary"},
      {[](auto& f) {
         f.at("/normalizer") = {{"type", "BertNormalizer"}};
       },
       "/normalizer: found {\"type\":\"BertNormalizer\"}"},
      {[](auto& f) {
         f.at("/pre_tokenizer") = {{"type", "Metaspace"}, {"replacement", "\u2581"}};
       },
       "/pre_tokenizer: found {"},
      {[](auto& f) {
         f.at("/decoder") = {{"type", "WordPiece"}};
       },
       "/decoder: found {\"type\":\"WordPiece\"}"},
      {[](auto& f) { f.at("/post_processor/type") = "BertProcessing"; }, "/post_processor: found"},
      {[](auto& f) { f.at("/added_tokens/0/special") = false; },
       "/post_processor: found token id 274 around each text, wanted the id of a special token"},
      {[](auto& f) { f.at("/added_tokens/1/id") = 274; }, "token '</s>': id 274 is already that"},
      {[](auto& f) { f.at("/added_tokens/2/id") = 300; }, "no token has id 276"},
      {[](auto& f) {
         f.write("tokenizer_config.json", {{"add_bos_token", false}});
       },
       "tokenizer_config.json: add_bos_token: found false, wanted true"},
      {[](auto& f) {
         f.write("config.json", {{"eos_token_id", 277}});
       },
       "config.json: eos_token_id: found 277, wanted the id of a token"},
      {[](auto& f) {
         f.write("added_tokens.json", {{"<tool>", 277}});
       },
       "found token '<tool>' 277"},
  };
  ASSERT_EQ(TokenizerFolder().fault(), "accepted");
  for (const Case& c : cases) {
    TokenizerFolder folder;
    c.change(folder);
    EXPECT_THAT(folder.fault(), HasSubstr(c.wanted));
  }
}

}  // namespace
}  // namespace trainyard::hf

#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <optional>
#include <sys/stat.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/paths.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/whole_tensor.h"
#include "tests/unit/worker/hf/stored_tensors.h"
#include "worker/hf/config.h"
#include "worker/hf/model_folder.h"
#include "worker/hf/tensor_form.h"
#include "worker/model/family.h"
#include "worker/safetensors/safetensors.h"

namespace trainyard::hf {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const std::filesystem::path kFixture = testing_support::source_path("tests/fixtures/hf_tiny_gpt2");

/// A folder that is the fixture with another config.json and other tensors.
class Folder {
 public:
  Folder() : tensors(read_tensors(kFixture / "model.safetensors")) {
    std::ifstream in(kFixture / "config.json");
    config = nlohmann::json::parse(in);
  }
  Result<std::unique_ptr<HfModel>> load() {
    std::ofstream(directory_.path() / "config.json") << config.dump();
    write_tensors(directory_.path() / "model.safetensors", tensors);
    return load_model(directory_.path());
  }
  const std::filesystem::path& path() const { return directory_.path(); }

  nlohmann::json config;
  StoredTensors tensors;

 private:
  testing_support::TemporaryDirectory directory_;
};

std::vector<engine::ParamSpec> params_of(const HfModel& model) {
  return engine::build_model(model.spec()).value().params;
}

engine::ParamSpec param_of(const HfModel& model, std::string_view name) {
  for (const engine::ParamSpec& param : params_of(model)) {
    if (param.name() == name) return param;
  }
  throw std::runtime_error("no parameter " + std::string(name));
}

std::string error_of(const Result<std::unique_ptr<HfModel>>& loaded) {
  return loaded ? "accepted" : loaded.error().message;
}

TEST(Gpt2ImportTest, ReadsAFolderThatTransformersSaved) {
  const auto model = load_model(kFixture);
  ASSERT_TRUE(model.has_value()) << model.error().message;
  const api::ModelSpec wanted{.layers = 2,
                              .hidden = 32,
                              .heads = 2,
                              .kv_heads = 2,
                              .ffn = 128,
                              .vocab = 61,
                              .max_positions = 16,
                              .layer_norm_epsilon = 1e-5};
  EXPECT_EQ((*model)->spec(), wanted);
  EXPECT_TRUE((*model)->notes().empty());
  EXPECT_EQ(params_of(**model).size(), 2U + 2U * 12U + 2U);
}

TEST(Gpt2ImportTest, LinearWeightsAreTransposedAndTheVocabularyPadded) {
  const auto model = load_model(kFixture);
  ASSERT_TRUE(model.has_value()) << model.error().message;
  const StoredTensors stored = read_tensors(kFixture / "model.safetensors");
  for (const engine::ParamSpec& param : params_of(**model)) {
    const auto ours = testing_support::whole_tensor(**model, param);
    ASSERT_TRUE(ours.has_value()) << ours.error().message;
    const bool embedding = param.name() == "wte" || param.name() == "wpe";
    const Stored& theirs = stored.at("transformer." + param.name() + (embedding ? ".weight" : ""));
    std::vector<float> values(theirs.data.size() / 4);
    std::memcpy(values.data(), theirs.data.data(), theirs.data.size());
    if (param.tensor.shape.size() == 2 && !embedding) {
      const int64_t out = param.tensor.shape[0];
      const int64_t in = param.tensor.shape[1];
      ASSERT_EQ(theirs.info.shape, (std::vector<int64_t>{in, out}));
      for (int64_t i = 0; i < in; ++i) {
        for (int64_t o = 0; o < out; ++o) {
          ASSERT_EQ((*ours)[static_cast<size_t>(o * in + i)],
                    values[static_cast<size_t>(i * out + o)])
              << param.name();
        }
      }
    } else {
      if (param.name() == "wte") {
        EXPECT_EQ(param.tensor.shape, (std::vector<int64_t>{64, 32}));
        values.resize(64 * 32, 0.0F);
      }
      EXPECT_EQ(*ours, values) << param.name();
    }
  }
  EXPECT_EQ(
      testing_support::whole_tensor(**model, {.tensor = {.name = "h.2.ln_1.bias", .shape = {32}},
                                              .hugging_face = {{"transformer.h.2.ln_1.bias", 32}}})
          .error()
          .code,
      ErrorCode::kNotFound);
}

TEST(Gpt2ImportTest, BareNamesMaskBuffersAndBfloat16AreAccepted) {
  Folder folder;
  folder.tensors = read_tensors(kFixture / "bare.safetensors");
  const auto bare = folder.load();
  const auto full = load_model(kFixture);
  ASSERT_TRUE(bare.has_value()) << bare.error().message;
  for (const engine::ParamSpec& param : params_of(**full)) {
    const auto rounded = testing_support::whole_tensor(**bare, param);
    const auto exact = testing_support::whole_tensor(**full, param);
    ASSERT_TRUE(rounded.has_value()) << rounded.error().message;
    ASSERT_EQ(rounded->size(), exact->size());
    for (size_t i = 0; i < exact->size(); ++i) {
      // bfloat16 keeps 8 significant bits: half a unit in the last place.
      ASSERT_LE(std::abs((*rounded)[i] - (*exact)[i]), std::abs((*exact)[i]) / 256) << param.name();
    }
  }
}

TEST(Gpt2ImportTest, EveryHalfIsConvertedExactly) {
  // 2048 x 32 positions hold all 65,536 bit patterns.
  Folder folder;
  folder.config["n_positions"] = 2048;
  Stored& wpe = folder.tensors.at("transformer.wpe.weight");
  wpe.info = {"", DType::kFloat16, {2048, 32}};
  wpe.data.resize(65536 * 2);
  for (uint32_t i = 0; i < 65536; ++i) {
    wpe.data[2 * i] = static_cast<std::byte>(i & 255U);
    wpe.data[2 * i + 1] = static_cast<std::byte>(i >> 8);
  }
  const auto model = folder.load();
  ASSERT_TRUE(model.has_value()) << model.error().message;
  const auto values = testing_support::whole_tensor(**model, param_of(**model, "wpe"));
  ASSERT_TRUE(values.has_value());
  for (uint32_t i = 0; i < 65536; ++i) {
    const int exponent = static_cast<int>(i >> 10 & 31U);
    const int fraction = static_cast<int>(i & 1023U);
    const double sign = (i >> 15) != 0 ? -1.0 : 1.0;
    const float found = (*values)[i];
    if (exponent == 31) {
      ASSERT_EQ(fraction == 0 ? std::isinf(found) : std::isnan(found), true) << i;
      continue;
    }
    const double wanted =
        exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
    ASSERT_EQ(found, sign * wanted) << i;
    ASSERT_EQ(std::signbit(found), sign < 0) << i;
  }
}

TEST(Gpt2ImportTest, NamesEveryMissingUnexpectedAndWronglyShapedTensor) {
  Folder folder;
  folder.tensors.erase("transformer.h.1.mlp.c_fc.bias");
  folder.tensors.erase("transformer.ln_f.weight");
  folder.tensors["transformer.h.2.ln_1.bias"] = folder.tensors["transformer.h.1.ln_1.bias"];
  folder.tensors["transformer.wpe.weight"].info.shape = {32, 16};
  EXPECT_THAT(
      error_of(folder.load()),
      AllOf(HasSubstr("missing: h.1.mlp.c_fc.bias [128]"), HasSubstr("missing: ln_f.weight [32]"),
            HasSubstr("unexpected: transformer.h.2.ln_1.bias"),
            HasSubstr("wrong shape: transformer.wpe.weight is [32,16], config.json makes it "
                      "[16,32]")));
}

TEST(Gpt2ImportTest, TransposedWeightsOfAnotherConventionAreRefused) {
  Folder folder;
  folder.tensors["transformer.h.0.attn.c_attn.weight"].info.shape = {96, 32};
  EXPECT_THAT(error_of(folder.load()), HasSubstr("wrong shape"));
}

TEST(Gpt2ImportTest, OutputHeadMustBeTied) {
  Folder folder;
  folder.tensors["lm_head.weight"] = folder.tensors["transformer.wte.weight"];
  EXPECT_EQ(error_of(folder.load()), "accepted");
  folder.tensors["lm_head.weight"].data[5] ^= std::byte{1};
  EXPECT_THAT(error_of(folder.load()), HasSubstr("lm_head.weight differs"));
  Folder untied;
  untied.config["tie_word_embeddings"] = false;
  EXPECT_THAT(error_of(untied.load()), HasSubstr("tie_word_embeddings: found false, wanted true"));
}

TEST(Gpt2ImportTest, TheHeadMayStandForTheEmbedding) {
  Folder folder;
  folder.tensors["lm_head.weight"] = folder.tensors["transformer.wte.weight"];
  folder.tensors.erase("transformer.wte.weight");
  const auto loaded = folder.load();
  ASSERT_TRUE(loaded.has_value()) << loaded.error().message;
  EXPECT_EQ(*testing_support::whole_tensor(**loaded, param_of(**loaded, "wte")),
            *testing_support::whole_tensor(**load_model(kFixture), param_of(**loaded, "wte")));
}

TEST(Gpt2ImportTest, EveryNameOfTheActivationIsTaken) {
  for (const char* name : {"gelu_new", "gelu_fast", "gelu_pytorch_tanh"}) {
    Folder folder;
    folder.config["activation_function"] = name;
    EXPECT_EQ(error_of(folder.load()), "accepted") << name;
  }
}

TEST(Gpt2ImportTest, APointerOfGitLfsIsNamedInEveryFile) {
  for (const char* name : {"config.json", "model.safetensors", "generation_config.json"}) {
    Folder folder;
    ASSERT_TRUE(folder.load().has_value());
    std::ofstream(folder.path() / name)
        << "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 548105171\n";
    EXPECT_THAT(error_of(load_model(folder.path())),
                AllOf(HasSubstr(name), HasSubstr("fetch the file by git lfs pull")));
  }
}

TEST(Gpt2ImportTest, TensorUnderBothNamesIsRefused) {
  Folder folder;
  folder.tensors["wpe.weight"] = folder.tensors["transformer.wpe.weight"];
  EXPECT_THAT(error_of(folder.load()), HasSubstr("twice: "));
}

TEST(Gpt2ImportTest, OtherTypesAreRefused) {
  Folder folder;
  Stored& wpe = folder.tensors["transformer.wpe.weight"];
  wpe.info.dtype = DType::kInt32;
  EXPECT_THAT(error_of(folder.load()), HasSubstr("wrong type: transformer.wpe.weight is I32"));
}

TEST(Gpt2ImportTest, VariantsThatThisEngineDoesNotComputeAreRefusedByKey) {
  const std::vector<std::pair<std::string, nlohmann::json>> changes = {
      {"activation_function", "relu"},
      {"scale_attn_by_inverse_layer_idx", true},
      {"scale_attn_weights", false},
      {"add_cross_attention", true},
      {"model_type", "gpt_neo"},
      {"n_head", 3},
      {"n_layer", 0},
      {"n_layer", -1},
      {"n_embd", 1.5},
      {"vocab_size", nullptr},
      {"vocab_size", 9'999'999'999},
      {"resid_pdrop", 1.5},
      {"layer_norm_epsilon", "small"},
      {"pruned_heads", {{"0", {1}}}},
      {"quantization_config", {{"quant_method", "gptq"}}},
      {"auto_map", {{"AutoModel", "modeling.Mine"}}},
      {"is_encoder_decoder", true},
  };
  for (const auto& [key, value] : changes) {
    Folder folder;
    folder.config[key] = value;
    const auto loaded = folder.load();
    ASSERT_FALSE(loaded.has_value()) << key;
    EXPECT_EQ(loaded.error().code, ErrorCode::kInvalidConfig) << key;
    EXPECT_THAT(loaded.error().message, HasSubstr(key));
  }
}

TEST(Gpt2ImportTest, DeeplyNestedConfigurationsAreRefusedAndNotPrinted) {
  const std::string deep = std::string(200'000, '[') + std::string(200'000, ']');
  const auto config = parse_config("{\"model_type\":" + deep + "}");
  ASSERT_FALSE(config);
  EXPECT_EQ(config.error().code, ErrorCode::kInvalidData);
  EXPECT_THAT(config.error().message, HasSubstr("config.json: not JSON: nested too deeply"));
}

TEST(Gpt2ImportTest, UnequalDropoutIsNoted) {
  Folder folder;
  folder.config["resid_pdrop"] = 0.1;
  folder.config.erase("attn_pdrop");  // its default is 0.1
  const auto loaded = folder.load();
  ASSERT_TRUE(loaded.has_value());
  EXPECT_EQ((*loaded)->spec().dropout, 0.1);
  ASSERT_EQ((*loaded)->notes().size(), 1U);
  EXPECT_THAT((*loaded)->notes()[0], HasSubstr("embd_pdrop"));
}

TEST(Gpt2ImportTest, WeightsInPartsAreReadThroughTheIndex) {
  Folder folder;
  ASSERT_TRUE(folder.load().has_value());
  StoredTensors first;
  StoredTensors second;
  nlohmann::json map;
  for (const auto& [name, tensor] : folder.tensors) {
    const bool early = first.size() <= second.size();
    (early ? first : second)[name] = tensor;
    map[name] = early ? "part-1.safetensors" : "part-2.safetensors";
  }
  write_tensors(folder.path() / "part-1.safetensors", first);
  write_tensors(folder.path() / "part-2.safetensors", second);
  std::filesystem::remove(folder.path() / "model.safetensors");
  std::ofstream(folder.path() / "model.safetensors.index.json")
      << nlohmann::json{{"weight_map", map}}.dump();
  const auto parts = load_model(folder.path());
  ASSERT_TRUE(parts.has_value()) << parts.error().message;
  const auto whole = load_model(kFixture);
  EXPECT_EQ(*testing_support::whole_tensor(**parts, param_of(**parts, "h.1.mlp.c_fc.weight")),
            *testing_support::whole_tensor(**whole, param_of(**whole, "h.1.mlp.c_fc.weight")));

  std::ofstream(folder.path() / "model.safetensors.index.json")
      << R"({"weight_map":{"a":"../secret.safetensors"}})";
  EXPECT_EQ(load_model(folder.path()).error().code, ErrorCode::kInvalidData);
}

TEST(Gpt2ImportTest, SizesHaveTheNamesThatTransformersTakes) {
  Folder folder;
  const auto before = folder.load();
  ASSERT_TRUE(before.has_value());
  for (const auto& [key, alias] :
       {std::pair("n_embd", "hidden_size"), std::pair("n_layer", "num_hidden_layers"),
        std::pair("n_head", "num_attention_heads"),
        std::pair("n_positions", "max_position_embeddings")}) {
    folder.config[alias] = folder.config[key];
    EXPECT_TRUE(folder.load().has_value()) << alias << " beside " << key;
    folder.config.erase(key);
  }
  const auto renamed = folder.load();
  ASSERT_TRUE(renamed.has_value()) << renamed.error().message;
  EXPECT_EQ((*renamed)->spec(), (*before)->spec());
  EXPECT_EQ((*renamed)->facts().config, (*before)->facts().config);
  folder.config["n_embd"] = 7;
  EXPECT_THAT(error_of(folder.load()), HasSubstr("hidden_size"));
}

TEST(Gpt2ImportTest, MissingFilesAreNamed) {
  const testing_support::TemporaryDirectory directory;
  EXPECT_THAT(error_of(load_model(directory.path())), HasSubstr("config.json"));
  std::filesystem::copy(kFixture / "config.json", directory.path());
  EXPECT_THAT(error_of(load_model(directory.path())), HasSubstr("model.safetensors"));
}

TEST(Gpt2ExportTest, ExportHoldsTheSameTensorsAsTheFolderImported) {
  const auto model = load_model(kFixture);
  ASSERT_TRUE(model.has_value());
  const testing_support::TemporaryDirectory directory;
  const auto out = directory.path() / "deep/out";
  const auto get = testing_support::tensors_in_pieces(**model, 77);
  const Status exported = export_model(out, (*model)->spec(), get);
  ASSERT_TRUE(exported) << exported.error().message;
  const StoredTensors before = read_tensors(kFixture / "model.safetensors");
  const StoredTensors after = read_tensors(out / "model.safetensors");
  ASSERT_EQ(after.size(), before.size());
  for (const auto& [name, tensor] : before) {
    ASSERT_TRUE(after.contains(name)) << name;
    EXPECT_EQ(after.at(name).info.shape, tensor.info.shape) << name;
    EXPECT_EQ(after.at(name).data, tensor.data) << name;
  }
  const auto again = load_model(out);
  ASSERT_TRUE(again.has_value()) << again.error().message;
  EXPECT_EQ((*again)->spec(), (*model)->spec());
  EXPECT_EQ(export_model(out, (*model)->spec(), get).error().code, ErrorCode::kAlreadyExists);
}

TEST(Gpt2ExportTest, WhatWasImportedIsExportedWhateverTheSizes) {
  Folder folder;
  folder.config["bos_token_id"] = 1;
  folder.config["eos_token_id"] = {2, 3};
  folder.config["initializer_range"] = 0.5;
  folder.config.erase("pad_token_id");
  ASSERT_TRUE(folder.load().has_value());
  std::ofstream(folder.path() / "generation_config.json") << R"({"temperature": 0.7})";
  const auto model = load_model(folder.path());
  ASSERT_TRUE(model.has_value()) << model.error().message;
  const testing_support::TemporaryDirectory out;
  ASSERT_TRUE(export_model(out.path(), (*model)->spec(),
                           testing_support::tensors_in_pieces(**model, 77), std::nullopt,
                           {.imported = (*model)->facts(), .end_of_text = 7}));
  const auto json_of = [&](const char* name) {
    std::ifstream file(out.path() / name);
    return nlohmann::json::parse(file);
  };
  const nlohmann::json config = json_of("config.json");
  EXPECT_EQ(config["bos_token_id"], 1);
  EXPECT_EQ(config["eos_token_id"], nlohmann::json({2, 3}));
  EXPECT_EQ(config["initializer_range"], 0.5);
  EXPECT_FALSE(config.contains("pad_token_id"));
  EXPECT_EQ(json_of("generation_config.json"), nlohmann::json({{"temperature", 0.7}}));
}

TEST(Gpt2ExportTest, NoTokenIsGuessedFromTheVocabulary) {
  const api::ModelSpec spec{
      .layers = 1, .hidden = 8, .heads = 1, .ffn = 8, .vocab = 50257, .max_positions = 8};
  const auto end_of_text = [&](std::optional<int32_t> known) {
    return nlohmann::json::parse(make_config(spec, {}, known).value())["eos_token_id"];
  };
  EXPECT_TRUE(end_of_text(std::nullopt).is_null());
  EXPECT_EQ(end_of_text(50256), 50256);
}

TEST(Gpt2ExportTest, FilesOfOthersAreNotReplaced) {
  const auto model = load_model(kFixture);
  const testing_support::TemporaryDirectory directory;
  const auto export_with = [&](const char* content) {
    return export_model(directory.path(), (*model)->spec(),
                        testing_support::tensors_in_pieces(**model, 77), ExportMark{"job-1", 7},
                        {.files = {{"tokenizer.json", content}}});
  };
  ASSERT_TRUE(export_with("{}"));
  EXPECT_TRUE(export_with("{}"));
  const Status other = export_with("{\"mine\":1}");
  EXPECT_EQ(other.error().code, ErrorCode::kAlreadyExists);
  EXPECT_THAT(other.error().message, HasSubstr("tokenizer.json: exists already"));
}

TEST(Gpt2ExportTest, AJobReplacesItsOwnExportAndNobodyElses) {
  const auto model = load_model(kFixture);
  ASSERT_TRUE(model.has_value());
  const testing_support::TemporaryDirectory directory;
  const auto get = testing_support::tensors_in_pieces(**model, 77);
  const auto export_as = [&](const std::optional<ExportMark>& mark) {
    return export_model(directory.path(), (*model)->spec(), get, mark);
  };
  ASSERT_TRUE(export_as(ExportMark{"job-1", 7}));
  EXPECT_TRUE(export_as(ExportMark{"job-1", 9}));
  EXPECT_EQ(export_as(ExportMark{"job-2", 9}).error().code, ErrorCode::kAlreadyExists);
  EXPECT_EQ(export_as(std::nullopt).error().code, ErrorCode::kAlreadyExists);
  EXPECT_TRUE(load_model(directory.path()));
  // What nobody has marked belongs to somebody else, damaged or not.
  std::ofstream(directory.path() / "model.safetensors") << "a model of mine";
  EXPECT_EQ(export_as(ExportMark{"job-1", 9}).error().code, ErrorCode::kAlreadyExists);
  EXPECT_EQ(check_export_folder(directory.path(), {}, {}).error().code, ErrorCode::kAlreadyExists);
}

TEST(Gpt2ExportTest, WhereNoJobIsKnownYetTheMarkOfAnyIsGoodEnough) {
  const auto model = load_model(kFixture);
  const testing_support::TemporaryDirectory directory;
  ASSERT_TRUE(export_model(directory.path(), (*model)->spec(),
                           testing_support::tensors_in_pieces(**model, 77),
                           ExportMark{"job-1", 7}));
  EXPECT_TRUE(check_export_folder(directory.path(), {}, {}));
  EXPECT_FALSE(check_export_folder(directory.path(), {.job_uid = "job-2"}, {}));
  std::filesystem::remove(directory.path() / "model.safetensors");
  EXPECT_FALSE(check_export_folder(directory.path(), {}, {})) << "whose is config.json now?";
}

TEST(Gpt2ExportTest, APlaceThatNobodyCanWriteToIsToldBeforeTheEnd) {
  const testing_support::TemporaryDirectory directory;
  EXPECT_TRUE(check_export_folder(directory.path() / "to/be/made", {}, {}));
  std::ofstream(directory.path() / "file") << "x";
  EXPECT_THAT(check_export_folder(directory.path() / "file/below", {}, {}).error().message,
              HasSubstr((directory.path() / "file").string() + " is not a folder"));
  std::filesystem::create_symlink("nowhere", directory.path() / "link");
  EXPECT_THAT(check_export_folder(directory.path() / "link", {}, {}).error().message,
              HasSubstr("link is not a folder"));
  if (::geteuid() == 0) return;  // who may write everywhere
  std::filesystem::create_directory(directory.path() / "closed");
  ASSERT_EQ(::chmod((directory.path() / "closed").c_str(), 0500), 0);
  EXPECT_THAT(check_export_folder(directory.path() / "closed/new", {}, {}).error().message,
              HasSubstr("closed (Permission denied); choose another folder"));
}

TEST(Gpt2ExportTest, AModelInOtherFilesIsNotReplacedEither) {
  const auto model = load_model(kFixture);
  ASSERT_TRUE(model.has_value());
  const auto get = testing_support::tensors_in_pieces(**model, 77);
  for (const char* name :
       {"model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json",
        "tf_model.h5", "model-00001-of-00002.safetensors", "pytorch_model-00001-of-00002.bin",
        "adapter_config.json", "model.fp16.safetensors", "config.json", "generation_config.json",
        "tokenizer_config.json"}) {
    const testing_support::TemporaryDirectory directory;
    std::ofstream(directory.path() / "README.md") << "of no model";
    std::ofstream(directory.path() / name) << "theirs";
    const Status exported =
        export_model(directory.path(), (*model)->spec(), get, ExportMark{"job-1", 7});
    ASSERT_FALSE(exported) << name;
    EXPECT_EQ(exported.error().code, ErrorCode::kAlreadyExists);
    EXPECT_THAT(exported.error().message, HasSubstr(name));
    std::string left;
    std::ifstream(directory.path() / name) >> left;
    EXPECT_EQ(left, "theirs");
    EXPECT_FALSE(std::filesystem::exists(directory.path() / "model.safetensors"));
  }
}

TEST(Gpt2ExportTest, TensorOfTheWrongSizeIsNamedAndNothingIsLeft) {
  const auto model = load_model(kFixture);
  const testing_support::TemporaryDirectory directory;
  const Status exported = export_model(
      directory.path(), (*model)->spec(),
      [](const engine::ParamSpec&, const UsePiece& use) { return use(std::vector<float>(3)); });
  EXPECT_THAT(exported.error().message, HasSubstr("12 bytes given, wanted"));
  EXPECT_FALSE(std::filesystem::exists(directory.path() / "model.safetensors"));
}

TEST(TransposeTest, UndoesItselfAtEverySize) {
  for (const int64_t rows : {1, 2, 15, 16, 17, 33}) {
    for (const int64_t columns : {1, 3, 16, 31, 48}) {
      std::vector<float> from(static_cast<size_t>(rows * columns));
      for (size_t i = 0; i < from.size(); ++i)
        from[i] = static_cast<float>(i);
      std::vector<float> to(from.size());
      std::vector<float> back(from.size());
      transpose(from.data(), rows, columns, to.data());
      EXPECT_EQ(to[static_cast<size_t>((columns - 1) * rows)],
                from[static_cast<size_t>(columns - 1)]);
      transpose(to.data(), columns, rows, back.data());
      EXPECT_EQ(back, from);
    }
  }
}

}  // namespace
}  // namespace trainyard::hf

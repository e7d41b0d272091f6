#include "worker/checkpoint/manifest.h"

#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/checkpoint/sealed_json.h"

namespace trainyard::checkpoint {
namespace {

using ::testing::HasSubstr;

Manifest example() {
  Manifest manifest;
  manifest.job_uid = "3f2a";
  manifest.generation = 4;
  manifest.parent_generation = 3;
  manifest.fork_step = 90;
  manifest.branch_id = "0123456789abcdef";
  manifest.step = 100;
  manifest.samples_consumed = 6400;
  manifest.previous = ManifestRef{{4, 90}, std::string(32, 'a')};
  manifest.adopted_from = ManifestRef{{3, 100}, std::string(32, 'b')};
  manifest.config_json = R"({"model":{"layers":2},"name":"\u00e9"})";
  manifest.scalars = {{"a", int64_t{-5}}, {"b", std::numeric_limits<uint64_t>::max()},
                      {"c", 0.1},         {"d", std::string("x\"y")},
                      {"e", 1.0},         {"f", 5e-324}};
  manifest.chunk_bytes = 256;
  manifest.shards = {{600, Hash256{1, 2, 3}, {Hash128{1}, Hash128{2}, Hash128{3}}},
                     {256, Hash256{4}, {Hash128{5}}}};
  manifest.tensors = {{"wpe",
                       TensorKind::kParameter,
                       DType::kFloat32,
                       {4, 5},
                       {{0, 16, {{0, 0}, {3, 5}}}, {1, 200, {{3, 0}, {1, 5}}}}},
                      {"wpe", TensorKind::kFirstMoment, DType::kBFloat16, {}, {{1, 254, {{}, {}}}}},
                      {"wte", TensorKind::kState, DType::kInt64, {2}, {{0, 584, {{0}, {2}}}}}};
  return manifest;
}

std::string encoded(const Manifest& manifest) {
  const auto text = encode(manifest);
  EXPECT_TRUE(text.has_value());
  return text ? *text : "";
}

/// The error of a text in which `from` has been replaced by `to`, sealed again.
std::string error_with(const std::string& from, const std::string& to) {
  std::string text = encoded(example());
  text.erase(text.rfind(",\n\"checksum\""));
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  const auto decoded = decode_manifest(seal_json(text + "}"));
  return decoded ? "accepted" : decoded.error().message;
}

TEST(ManifestTest, IsReadBackUnchangedAndEncodesToTheSameBytes) {
  const std::string text = encoded(example());
  const auto decoded = decode_manifest(text);
  ASSERT_TRUE(decoded.has_value()) << decoded.error().message;
  Manifest wanted = example();
  wanted.config_json = decoded->config_json;  // the same JSON, spelled by the encoder
  EXPECT_EQ(*decoded, wanted);
  EXPECT_EQ(encoded(*decoded), text);
  EXPECT_EQ(*manifest_checksum(text), text.substr(text.size() - 35, 32));
}

TEST(ManifestTest, WhatIsWrongIsNamed) {
  const std::vector<std::array<std::string, 3>> cases = {
      {"trainyard-checkpoint", "other", "format: is \"other\""},
      {"\"version\": 2", "\"version\": 3", "version: is 3, this program reads 1 to 2"},
      {"\"generation\": 4", "\"generation\": -4", "generation: is -4"},
      {"\"generation\": 4", "\"generation\": 18446744073709551615", "generation: is 1844"},
      {"\"generation\": 4", "\"generation\": 4.5", "generation: is number, wanted an integer"},
      {"\"step\": 100", "\"stop\": 100", "step: missing"},
      {"\"jobUid\": \"3f2a\"", "\"jobUid\": 7", "jobUid: is number, wanted a string"},
      {"g4-step-0000000090", "../../etc", "previous.directory: \"../../etc\" names no checkpoint"},
      {"\"config\": {", "\"config\": [{", "manifest.json: not JSON"},
      {"\"chunkBytes\": 256", "\"chunkBytes\": 0", "chunkBytes: is 0"},
      {"\"chunkBytes\": 256", "\"chunkBytes\": 1000000000000", "chunkBytes: is 1000000000000"},
      {"\"chunkBytes\": 256", "\"chunkBytes\": 512", "shards[0].chunks: wanted an array of 2"},
      {"\"bytes\":600", "\"bytes\":6000000000", "shards[0].chunks: wanted an array of 23437500"},
      {"shard-0-of-2.safetensors", "../x", "shards[0].file: is \"../x\""},
      {"\"sha256\":\"01", "\"sha256\":\"0G", "shards[0].sha256: wanted 64"},
      {"\"kind\":\"m\"", "\"kind\":\"n\"", "tensors[1].kind: is \"n\""},
      {"\"dtype\":\"BF16\"", "\"dtype\":\"BF17\"", "tensors[1].dtype: \"BF17\""},
      {"\"name\":\"wte\"", "\"name\":\"wt/e\"", "[A-Za-z0-9_.-]"},
      {"\"name\":\"wte\"", "\"name\":\"wpa\"", "not in ascending order"},
      {"\"shape\":[4,5]", "\"shape\":[4,6]", "cover 20 of the 24"},
      {"\"shape\":[4,5]", "\"shape\":[4]", "another number of axes"},
      {"\"shape\":[4,5]", "\"shape\":[4,0]", "tensors[0].shape: is 0"},
      {"\"shape\":[4,5]", "\"shape\":[1,1,1,1,1,1,1,1,1]", "has 9 elements, the limit is 8"},
      {"\"shape\":[3,5]", "\"shape\":[4,5]", "overlap"},
      {"\"shape\":[3,5]", "\"shape\":[9223372036854775807,5]", "does not fit into its shard"},
      {"\"byteOffset\":200", "\"byteOffset\":240", "does not fit into its shard of 256 bytes"},
      {"\"byteOffset\":200", "\"byteOffset\":9223372036854775807", "does not fit"},
      {"\"shard\":1", "\"shard\":2", "is in shard 2 of 2"},
      {"\"a\":-5", "\"a\":null", "scalars.a: is null"},
  };
  for (const auto& [from, to, message] : cases) {
    EXPECT_THAT(error_with(from, to), HasSubstr(message)) << from << " -> " << to;
  }
}

TEST(ManifestTest, DeeplyNestedConfigurationsAreRefusedAndNotPrinted) {
  const std::string deep = std::string(200'000, '[') + std::string(200'000, ']');
  EXPECT_THAT(error_with("\"config\": {", "\"config\": {\"deep\":" + deep + ","),
              HasSubstr("manifest.json: not JSON: nested too deeply"));
}

TEST(ManifestTest, RefusesToEncodeWhatItCouldNotReadBack) {
  Manifest manifest = example();
  manifest.scalars["x"] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(encode(manifest).error().message, HasSubstr("scalar x is not finite"));
  manifest = example();
  manifest.config_json = "[]";
  EXPECT_FALSE(encode(manifest).has_value());
}

TEST(ManifestTest, ScalarsAreTyped) {
  const Scalars scalars = example().scalars;
  EXPECT_EQ(*scalar_int64(scalars, "a"), -5);
  EXPECT_EQ(*scalar_uint64(scalars, "b"), std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(*scalar_double(scalars, "c"), 0.1);
  EXPECT_EQ(*scalar_string(scalars, "d"), "x\"y");
  EXPECT_THAT(scalar_int64(scalars, "b").error().message,
              HasSubstr("scalar b is an integer above"));
  EXPECT_THAT(scalar_uint64(scalars, "a").error().message, HasSubstr("wanted an unsigned"));
  EXPECT_THAT(scalar_double(scalars, "a").error().message, HasSubstr("wanted a float"));
  EXPECT_THAT(scalar_int64(scalars, "z").error().message, HasSubstr("scalar z is missing"));
}

TEST(ManifestTest, TensorsAreFoundByNameAndKind) {
  const Manifest manifest = example();
  EXPECT_EQ(find_tensor(manifest, "wpe", TensorKind::kFirstMoment), &manifest.tensors[1]);
  EXPECT_EQ(find_tensor(manifest, "wpe", TensorKind::kSecondMoment), nullptr);
  EXPECT_EQ(find_tensor(manifest, "wtz", TensorKind::kParameter), nullptr);
}

}  // namespace
}  // namespace trainyard::checkpoint

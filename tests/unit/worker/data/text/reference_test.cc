// The real tokenizers of four families against the tokenizers library. Fetches 130 MB once
// (tools/fetch_data.sh tokenizers), so it runs with TRAINYARD_LONG_TESTS=1 only.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/extent.h"
#include "tests/support/paths.h"
#include "tests/unit/worker/data/support.h"
#include "tests/unit/worker/data/text/gpt2_files.h"
#include "worker/data/text/tokenizer.h"

namespace trainyard::data {
namespace {

namespace fs = std::filesystem;

// The records of a file of tools/oracle/write_tokenizer_reference.py, of `unit` bytes each element.
std::vector<std::string_view> records(std::string_view bytes, size_t unit) {
  std::vector<std::string_view> found;
  while (!bytes.empty()) {
    uint32_t count = 0;
    std::memcpy(&count, bytes.data(), sizeof count);
    found.push_back(bytes.substr(sizeof count, count * unit));
    bytes.remove_prefix(sizeof count + count * unit);
  }
  return found;
}

class ReferenceTest : public testing::TestWithParam<const char*> {};

TEST_P(ReferenceTest, NoIdDiffers) {
  if (!testing_support::runs_everything()) {
    GTEST_SKIP() << "minutes long; set TRAINYARD_LONG_TESTS=1";
  }
  const test::TemporaryFolder folder;
  const fs::path cache = test::gpt2_folder().parent_path();
  const auto run = [](const std::string& command) {
    return std::system(command.c_str());  // NOLINT(concurrency-mt-unsafe, cert-env33-c)
  };
  ASSERT_EQ(run("'" + testing_support::source_path("tools/fetch_data.sh") +
                "' state-of-the-union gpt2-bpe tokenizers"),
            0);
  ASSERT_EQ(run("'" + (cache / "python/bin/python3").string() + "' '" +
                testing_support::source_path("tools/oracle/write_tokenizer_reference.py") + "' '" +
                cache.string() + "' " + GetParam() + " '" + folder.path().string() + "'"),
            0);
  const auto tokenizer = open_tokenizer(folder.path() / "tokenizer.json");
  // Llama's file alone does not say which of its tokens ends a text.
  if (std::string_view(GetParam()) == "llama3_1") {
    EXPECT_FALSE(tokenizer);
    test::spill(folder.path() / "config.json", R"({"eos_token_id": [128001, 128008, 128009]})");
  }
  const auto opened = open_tokenizer(folder.path() / "tokenizer.json").value();
  const std::string texts = test::slurp(folder.path() / "texts.bin");
  const std::string ids = test::slurp(folder.path() / "ids.bin");
  const auto inputs = records(texts, 1);
  const auto outputs = records(ids, sizeof(int32_t));
  ASSERT_EQ(inputs.size(), outputs.size());
  ASSERT_GT(inputs.size(), size_t{2'200'000});
  for (size_t i = 0; i < inputs.size(); ++i) {
    std::vector<int32_t> wanted(outputs[i].size() / sizeof(int32_t));
    std::memcpy(wanted.data(), outputs[i].data(), outputs[i].size());
    ASSERT_EQ(opened->encode(inputs[i]), wanted)
        << "text " << i << ": " << inputs[i].substr(0, 200);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, ReferenceTest,
                         testing::Values("gpt2", "llama3_1", "qwen3", "smollm2"),
                         [](const auto& family) { return std::string(family.param); });

}  // namespace
}  // namespace trainyard::data

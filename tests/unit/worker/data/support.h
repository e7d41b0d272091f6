#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "common/io/file.h"
#include "worker/data/dataset.h"
#include "worker/data/text/tokenizer.h"
#include "worker/data/token_writer.h"

namespace trainyard::data::test {

/// A fresh folder that goes with its owner.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "trainyard-data-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline std::string slurp(const std::filesystem::path& path) {
  return read_file(path, int64_t{1} << 30).value();
}

inline void spill(const std::filesystem::path& path, std::string_view content) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << content;
}

/// As `data prepare` opens a tokenizer.
inline Result<std::unique_ptr<Tokenizer>> open_for_data(const std::filesystem::path& path) {
  TRAINYARD_ASSIGN(std::unique_ptr<Tokenizer> tokenizer, open_tokenizer(path));
  TRAINYARD_TRY(tokenizer->check_end_of_text());
  return tokenizer;
}

/// Tokens 0, 1, 2, ... modulo `vocabulary`, so that a token tells its position.
inline std::vector<int32_t> counting_tokens(int64_t count, int32_t vocabulary) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i)
    tokens[static_cast<size_t>(i)] = static_cast<int32_t>(i % vocabulary);
  return tokens;
}

inline TokenWriterOptions writer_options(int token_bytes, int64_t vocabulary,
                                         int64_t shard_tokens = int64_t{1} << 27) {
  TokenWriterOptions options;
  options.token_bytes = token_bytes;
  options.vocabulary = vocabulary;
  options.tokenizer = "test";
  options.tokenizer_hash = xxh3_128(std::as_bytes(std::span("test", 4)));
  options.shard_tokens = shard_tokens;
  return options;
}

/// Shards of counting tokens in `folder`.
inline TokenSet make_token_set(const std::filesystem::path& folder, int64_t count,
                               int32_t vocabulary = 50'000,
                               int64_t shard_tokens = int64_t{1} << 27) {
  auto writer = TokenWriter::create(folder, writer_options(2, vocabulary, shard_tokens)).value();
  EXPECT_TRUE(writer.append(counting_tokens(count, vocabulary)));
  EXPECT_TRUE(writer.finish());
  const std::vector<std::filesystem::path> paths = {folder};
  return TokenSet::open(paths).value();
}

}  // namespace trainyard::data::test

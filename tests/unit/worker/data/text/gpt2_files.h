#pragma once

#include <cstdlib>
#include <filesystem>
#include <memory>

#include <gtest/gtest.h>

#include "worker/data/text/tokenizer.h"

namespace trainyard::data::test {

/// Where tools/fetch_data.sh puts GPT-2's vocabulary and merges.
inline std::filesystem::path gpt2_folder() {
  const char* cache = std::getenv("TRAINYARD_CACHE");
  const char* home = std::getenv("HOME");
  const std::filesystem::path root =
      cache != nullptr
          ? cache
          : std::filesystem::path(home != nullptr ? home : "/root") / ".cache/trainyard";
  return root / "gpt2-bpe-0.1.5";
}

/// GPT-2's tokenizer; null, with a failure that says what to run, when its files are not there.
inline std::unique_ptr<Tokenizer> open_gpt2() {
  auto tokenizer = open_tokenizer(gpt2_folder());
  if (tokenizer) return *std::move(tokenizer);
  ADD_FAILURE() << tokenizer.error().message << "\nRun: tools/fetch_data.sh gpt2-bpe";
  return nullptr;
}

}  // namespace trainyard::data::test

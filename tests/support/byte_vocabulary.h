#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace trainyard::testing_support {

/// The smallest vocab.json of a byte-level tokenizer: every byte by itself, in the letters that
/// GPT-2 writes bytes in, and the end of a text. Its merges.txt has none.
inline nlohmann::json byte_vocabulary() {
  nlohmann::json vocabulary;
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool prints = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    const int letter = prints ? byte : next++;
    std::string written(1, static_cast<char>(letter));
    if (letter >= 0x80) {
      written = {static_cast<char>(0xC0 | letter >> 6), static_cast<char>(0x80 | (letter & 0x3F))};
    }
    vocabulary[written] = byte;
  }
  vocabulary["<|endoftext|>"] = 256;
  return vocabulary;
}

}  // namespace trainyard::testing_support

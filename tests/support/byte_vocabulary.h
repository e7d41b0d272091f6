#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace trainyard::testing_support {

/// A byte in the letters that GPT-2 writes bytes in.
inline std::string written(unsigned byte) {
  const auto prints = [](unsigned one) {
    return (one >= 0x21 && one <= 0x7E) || (one >= 0xA1 && one != 0xAD);
  };
  unsigned letter = byte;
  if (!prints(byte)) {
    letter = 0x100;
    for (unsigned before = 0; before < byte; ++before)
      letter += prints(before) ? 0 : 1;
  }
  if (letter < 0x80) return std::string(1, static_cast<char>(letter));
  return {static_cast<char>(0xC0 | letter >> 6), static_cast<char>(0x80 | (letter & 0x3F))};
}

/// Tokens of the bytes below `end`, each by itself.
inline nlohmann::json vocabulary_of_bytes(unsigned end) {
  nlohmann::json vocabulary;
  for (unsigned byte = 0; byte < end; ++byte)
    vocabulary[written(byte)] = byte;
  return vocabulary;
}

/// The smallest vocab.json of a byte-level tokenizer: every byte by itself, and the end of a text.
/// Its merges.txt has none.
inline nlohmann::json byte_vocabulary() {
  nlohmann::json vocabulary = vocabulary_of_bytes(256);
  vocabulary["<|endoftext|>"] = 256;
  return vocabulary;
}

/// A tokenizer.json of the bytes below `end`, then "ab" and "abc", which merges give, then the end
/// of a text.
inline nlohmann::json small_tokenizer_json(unsigned end = 256) {
  nlohmann::json vocabulary = vocabulary_of_bytes(end);
  vocabulary["ab"] = end;
  vocabulary["abc"] = end + 1;
  return {
      {"added_tokens", {{{"id", end + 2}, {"content", "<|endoftext|>"}, {"special", true}}}},
      {"normalizer", nullptr},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
      {"model",
       {{"type", "BPE"},
        {"dropout", nullptr},
        {"byte_fallback", false},
        {"vocab", vocabulary},
        {"merges", nlohmann::json::array({"a b", "ab c"})}}}};
}

}  // namespace trainyard::testing_support

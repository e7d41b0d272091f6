#include "common/contract/rank_position.h"

#include <algorithm>
#include <cstring>

namespace trainyard::contract {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr size_t kWords = InstructionName::kMaxKindBytes / sizeof(uint64_t);

}  // namespace

void store(const InstructionName& name, RankPosition& position) {
  std::array<uint64_t, kWords> words{};
  std::memcpy(words.data(), name.kind.data(),
              std::min(name.kind.size(), InstructionName::kMaxKindBytes));
  for (size_t i = 0; i < kWords; ++i)
    position.kind[i].store(words[i], kRelaxed);
  position.micro_batch.store(name.micro_batch, kRelaxed);
  position.place.store(name.place, kRelaxed);
}

std::string instruction_text(const RankPosition& position) {
  std::array<uint64_t, kWords> words{};
  for (size_t i = 0; i < kWords; ++i)
    words[i] = position.kind[i].load(kRelaxed);
  std::array<char, InstructionName::kMaxKindBytes> bytes{};
  std::memcpy(bytes.data(), words.data(), sizeof words);
  std::string text;
  for (const char c : bytes) {
    if (c == '\0') break;
    text += c > ' ' && c < 0x7f ? c : '?';
  }
  if (text.empty()) return text;
  const bool is_pass = text.size() == 1 || text == "RECOMPUTE";  // of a layer
  const int32_t micro_batch = position.micro_batch.load(kRelaxed);
  const int32_t place = position.place.load(kRelaxed);
  if (micro_batch >= 0) text += " m" + std::to_string(micro_batch);
  if (place >= 0) text += (is_pass ? " l" : " u") + std::to_string(place);
  return text;
}

}  // namespace trainyard::contract

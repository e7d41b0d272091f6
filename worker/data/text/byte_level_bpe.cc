#include "worker/data/text/byte_level_bpe.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "common/base/check.h"
#include "common/random/philox.h"
#include "worker/data/text/utf8.h"

namespace trainyard::data {
namespace {

// Unicode's White_Space property, spelled out: PCRE2's own \s under UCP also takes U+180E, which
// has not been white space since Unicode 6.3.
#define TRAINYARD_WHITE_SPACE \
  R"(\t-\r \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})"

// GPT-2's pattern (encoder.py) with \s written out.
constexpr std::string_view kPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\p{L}\p{N})" TRAINYARD_WHITE_SPACE
    R"(]+|[)" TRAINYARD_WHITE_SPACE R"(]+(?![^)" TRAINYARD_WHITE_SPACE
    R"(])|[)" TRAINYARD_WHITE_SPACE R"(]+)";

constexpr int32_t kNone = -1;

constexpr uint64_t pair_of(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

constexpr bool is_ascii_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// The piece ` ?\p{L}+` at `position` where plain comparisons can tell: an ASCII word that an ASCII
// character or the end follows. 0 where the pattern must be asked. Most pieces of English are such;
// this trebles the speed.
size_t ascii_word(std::string_view text, size_t position) {
  const size_t first = position + (text[position] == ' ' ? 1 : 0);
  size_t end = first;
  while (end < text.size() && is_ascii_letter(text[end]))
    ++end;
  const bool is_sure = end > first && (end == text.size() || static_cast<int8_t>(text[end]) >= 0);
  return is_sure ? end - position : 0;
}

template <class T>
void hash_integer(Xxh3Stream& hash, T value) {
  hash.update(std::as_bytes(std::span(&value, 1)));
}

Hash128 identity_of(const BpeVocabulary& tables, const AddedTokens& added) {
  constexpr std::string_view kLabel = "trainyard/byte-level-bpe/1";
  Xxh3Stream hash;
  hash.update(std::as_bytes(std::span(kLabel)));
  for (const std::string& token : tables.tokens) {
    hash_integer(hash, static_cast<uint64_t>(token.size()));
    hash.update(std::as_bytes(std::span(token)));
  }
  for (const BpeMerge& merge : tables.merges) {
    hash_integer(hash, merge.left);
    hash_integer(hash, merge.right);
    hash_integer(hash, merge.result);
  }
  hash_integer(hash, tables.end_of_text);
  if (!added.matches_any()) return hash.digest();
  for (const AddedToken& token : added.tokens()) {
    hash_integer(hash, token.id);
    for (const bool flag :
         {token.special, token.normalized, token.lstrip, token.rstrip, token.single_word})
      hash_integer(hash, static_cast<uint8_t>(flag));
  }
  return hash.digest();
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> ByteLevelBpe::create(BpeVocabulary vocabulary) {
  TRAINYARD_ASSIGN(Pattern pattern, Pattern::compile(kPattern, Pattern::Anchor::kAtPosition));
  TRAINYARD_ASSIGN(AddedTokens added, AddedTokens::create(vocabulary.added));
  return std::unique_ptr<Tokenizer>(
      new ByteLevelBpe(std::move(vocabulary), std::move(added), std::move(pattern)));
}

ByteLevelBpe::ByteLevelBpe(BpeVocabulary vocabulary, AddedTokens added, Pattern pattern)
    : tables_(std::move(vocabulary)),
      added_(std::move(added)),
      pattern_(std::move(pattern)),
      identity_(identity_of(tables_, added_)),
      rules_(std::bit_ceil(tables_.merges.size() * 2 + 1)) {
  byte_ids_.fill(kNone);
  for (size_t id = 0; id < tables_.tokens.size(); ++id) {
    const std::string& token = tables_.tokens[id];
    if (token.size() == 1) {
      byte_ids_[static_cast<unsigned char>(token[0])] = static_cast<int32_t>(id);
    }
  }
  TRAINYARD_CHECK(std::ranges::count(byte_ids_, kNone) == 0);
  for (size_t rank = 0; rank < tables_.merges.size(); ++rank) {
    const BpeMerge& merge = tables_.merges[rank];
    const uint64_t pair = pair_of(merge.left, merge.right);
    size_t place = mix64(pair) & (rules_.size() - 1);
    while (rules_[place].rank != kNoMerge)
      place = (place + 1) & (rules_.size() - 1);
    rules_[place] = {pair, static_cast<uint32_t>(rank), merge.result};
  }
}

const ByteLevelBpe::Rule* ByteLevelBpe::find_rule(uint64_t pair) const {
  size_t place = mix64(pair) & (rules_.size() - 1);
  while (rules_[place].rank != kNoMerge) {
    if (rules_[place].pair == pair) return &rules_[place];
    place = (place + 1) & (rules_.size() - 1);
  }
  return nullptr;
}

void ByteLevelBpe::encode(std::string_view text, std::vector<int32_t>& ids) {
  TRAINYARD_CHECK(text.size() < static_cast<size_t>(std::numeric_limits<int32_t>::max()));
  while (!text.empty()) {
    const size_t good = well_formed_prefix(text);
    encode_well_formed(text.substr(0, good), ids);
    text.remove_prefix(good);
    const size_t bad = ill_formed_prefix(text);
    if (bad > 0) encode_piece(text.substr(0, bad), ids);
    text.remove_prefix(bad);
  }
}

void ByteLevelBpe::encode_well_formed(std::string_view text, std::vector<int32_t>& ids) {
  if (!added_.matches_any()) return encode_plain(text, ids);
  added_.split(text, [&](std::optional<int32_t> id, std::string_view part) {
    if (id) {
      ids.push_back(*id);
    } else {
      encode_plain(part, ids);
    }
  });
}

void ByteLevelBpe::encode_plain(std::string_view text, std::vector<int32_t>& ids) {
  for (size_t position = 0; position < text.size();) {
    size_t length = ascii_word(text, position);
    if (length == 0) length = pattern_.match_at(text, position).value_or(0);
    TRAINYARD_CHECK(length > 0);  // every character belongs to one of the classes
    encode_piece(text.substr(position, length), ids);
    position += length;
  }
}

void ByteLevelBpe::encode_piece(std::string_view piece, std::vector<int32_t>& ids) {
  if (piece.size() == 1) {
    ids.push_back(byte_ids_[static_cast<unsigned char>(piece[0])]);
    return;
  }
  if (cache_.append_found(piece, ids)) return;
  const size_t begin = ids.size();
  merge_piece(piece, ids);
  cache_.insert(piece, std::span(ids).subspan(begin));
}

uint64_t ByteLevelBpe::pair_at(int32_t position) const {
  const Node& node = nodes_[static_cast<size_t>(position)];
  return pair_of(node.id, nodes_[static_cast<size_t>(node.after)].id);
}

void ByteLevelBpe::push_candidate(int32_t position) {
  const uint64_t pair = pair_at(position);
  const Rule* rule = find_rule(pair);
  if (rule != nullptr) candidates_.push_back({rule->rank, position, pair});
}

void ByteLevelBpe::merge_piece(std::string_view piece, std::vector<int32_t>& ids) {
  const auto later = [](const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
  };
  const auto size = static_cast<int32_t>(piece.size());
  nodes_.clear();
  for (int32_t i = 0; i < size; ++i) {
    const auto byte = static_cast<unsigned char>(piece[static_cast<size_t>(i)]);
    nodes_.push_back({byte_ids_[byte], i - 1, i + 1 < size ? i + 1 : kNone});
  }
  candidates_.clear();
  for (int32_t i = 0; i + 1 < size; ++i)
    push_candidate(i);
  std::ranges::make_heap(candidates_, later);

  while (!candidates_.empty()) {
    std::ranges::pop_heap(candidates_, later);
    const Candidate best = candidates_.back();
    candidates_.pop_back();
    Node& node = nodes_[static_cast<size_t>(best.position)];
    if (node.id == kNone || node.after == kNone || pair_at(best.position) != best.pair) continue;
    Node& eaten = nodes_[static_cast<size_t>(node.after)];
    node.id = find_rule(best.pair)->result;
    node.after = eaten.after;
    eaten.id = kNone;
    const auto offer = [&](int32_t position) {
      const size_t before = candidates_.size();
      push_candidate(position);
      if (candidates_.size() > before) std::ranges::push_heap(candidates_, later);
    };
    if (node.after != kNone) {
      nodes_[static_cast<size_t>(node.after)].before = best.position;
      offer(best.position);
    }
    if (node.before != kNone) offer(node.before);
  }
  for (int32_t i = 0; i != kNone; i = nodes_[static_cast<size_t>(i)].after)
    ids.push_back(nodes_[static_cast<size_t>(i)].id);
}

size_t ByteLevelBpe::safe_cut(std::string_view text) const {
  // No piece goes from something else into white space, and nothing looks back over that border.
  for (size_t cut = text.size(); cut-- > 1;) {
    const char c = text[cut];
    const bool is_space = c == ' ' || (c >= '\t' && c <= '\r');
    if (!is_space || ends_in_white_space(text.substr(0, cut))) continue;
    if (!added_.matches_any() || !added_.touch(text, cut)) return cut;
  }
  return 0;
}

Status ByteLevelBpe::decode_token(int32_t id, std::string& bytes) const {
  if (id < 0 || id >= vocabulary()) {
    return Error{ErrorCode::kInvalidData, "token id: found " + std::to_string(id) + ", wanted 0.." +
                                              std::to_string(vocabulary() - 1)};
  }
  bytes += tables_.tokens[static_cast<size_t>(id)];
  return {};
}

}  // namespace trainyard::data

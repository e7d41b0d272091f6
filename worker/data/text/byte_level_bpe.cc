#include "worker/data/text/byte_level_bpe.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "common/base/check.h"
#include "common/random/philox.h"
#include "worker/data/text/nfc.h"
#include "worker/data/text/utf8.h"

namespace trainyard::data {
namespace {

constexpr int32_t kNone = -1;

constexpr uint64_t pair_of(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

template <class T>
void hash_integer(Xxh3Stream& hash, T value) {
  hash.update(std::as_bytes(std::span(&value, 1)));
}

void hash_text(Xxh3Stream& hash, std::string_view text) {
  hash_integer(hash, static_cast<uint64_t>(text.size()));
  hash.update(std::as_bytes(std::span(text)));
}

void hash_pipeline(Xxh3Stream& hash, const Pipeline& pipeline) {
  for (const bool flag :
       {pipeline.nfc, pipeline.ignore_merges, pipeline.cuts.prefix_space, pipeline.cuts.gpt2_words})
    hash_integer(hash, static_cast<uint8_t>(flag));
  hash_integer(hash, static_cast<uint64_t>(pipeline.cuts.splits.size()));
  for (const TextSplit& rule : pipeline.cuts.splits) {
    hash_integer(hash, static_cast<uint8_t>(rule.kind));
    hash_integer(hash, static_cast<uint8_t>(rule.behaviour));
    hash_integer(hash, static_cast<uint8_t>(rule.invert));
    hash_integer(hash, static_cast<uint8_t>(rule.one_digit));
    hash_text(hash, rule.pattern);
  }
  for (const auto& ids : {pipeline.before, pipeline.after}) {
    hash_integer(hash, static_cast<uint64_t>(ids.size()));
    hash.update(std::as_bytes(std::span(ids)));
  }
}

// Which tokens are the model's own, and which are special.
void hash_kinds(Xxh3Stream& hash, const BpeVocabulary& tables) {
  std::vector<uint8_t> kinds(tables.tokens.size());
  for (const int32_t id : tables.whole)
    kinds[static_cast<size_t>(id)] |= 1;
  for (const AddedToken& token : tables.added) {
    if (token.special) kinds[static_cast<size_t>(token.id)] |= 2;
  }
  hash.update(std::as_bytes(std::span(kinds)));
}

// GPT-2's own pipeline is older than the others and not part of its hash.
Hash128 identity_of(const BpeVocabulary& tables, const AddedTokens& added) {
  const bool is_gpt2 = tables.pipeline == Pipeline();
  const std::string_view label =
      is_gpt2 ? "trainyard/byte-level-bpe/1" : "trainyard/byte-level-bpe/2";
  Xxh3Stream hash;
  hash.update(std::as_bytes(std::span(label)));
  if (!is_gpt2) hash_pipeline(hash, tables.pipeline);
  for (const std::string& token : tables.tokens)
    hash_text(hash, token);
  for (const BpeMerge& merge : tables.merges) {
    hash_integer(hash, merge.left);
    hash_integer(hash, merge.right);
    hash_integer(hash, merge.result);
  }
  hash_integer(hash, tables.end_of_text);
  if (!is_gpt2) hash_kinds(hash, tables);
  if (!added.matches_any()) return hash.digest();
  for (const AddedToken& token : added.tokens()) {
    hash_integer(hash, token.id);
    for (const bool flag :
         {token.special, token.normalized, token.lstrip, token.rstrip, token.single_word})
      hash_integer(hash, static_cast<uint8_t>(flag));
    if (token.content != tables.tokens[static_cast<size_t>(token.id)])
      hash_text(hash, token.content);
  }
  return hash.digest();
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> ByteLevelBpe::create(BpeVocabulary vocabulary) {
  TRAINYARD_ASSIGN(PreTokenizer cuts, PreTokenizer::create(vocabulary.pipeline.cuts));
  return std::unique_ptr<Tokenizer>(new ByteLevelBpe(std::move(vocabulary), std::move(cuts)));
}

ByteLevelBpe::ByteLevelBpe(BpeVocabulary vocabulary, PreTokenizer cuts)
    : tables_(std::move(vocabulary)),
      added_(tables_.added,
             tables_.pipeline.nfc ? AddedTokens::Normal::kNfc : AddedTokens::Normal::kAsIs),
      cuts_(std::move(cuts)),
      is_gpt2_(tables_.pipeline == Pipeline()),
      identity_(identity_of(tables_, added_)),
      rules_(std::bit_ceil(tables_.merges.size() * 2 + 1)) {
  byte_ids_.fill(kNone);
  for (const int32_t id : tables_.whole) {
    const std::string& token = tables_.tokens[static_cast<size_t>(id)];
    if (token.size() == 1) byte_ids_[static_cast<unsigned char>(token[0])] = id;
  }
  lacks_bytes_ = std::ranges::find(byte_ids_, kNone) != byte_ids_.end();
  for (size_t rank = 0; rank < tables_.merges.size(); ++rank) {
    const BpeMerge& merge = tables_.merges[rank];
    const uint64_t pair = pair_of(merge.left, merge.right);
    size_t place = mix64(pair) & (rules_.size() - 1);
    while (rules_[place].rank != kNoMerge)
      place = (place + 1) & (rules_.size() - 1);
    rules_[place] = {pair, static_cast<uint32_t>(rank), merge.result};
  }
  if (!tables_.pipeline.ignore_merges) return;
  for (const int32_t id : tables_.whole)
    whole_.emplace(tables_.tokens[static_cast<size_t>(id)], id);
  for (const AddedToken& token : tables_.added) {
    if (!token.special) continue;  // one that is special is never read from a text
    const auto found = whole_.find(tables_.tokens[static_cast<size_t>(token.id)]);
    if (found != whole_.end() && found->second == token.id) whole_.erase(found);
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

Status ByteLevelBpe::encode(std::string_view text, std::vector<int32_t>& ids) {
  TRAINYARD_CHECK(text.size() < static_cast<size_t>(std::numeric_limits<int32_t>::max()));
  while (!text.empty()) {
    const size_t good = well_formed_prefix(text);
    TRAINYARD_TRY(encode_well_formed(text.substr(0, good), ids));
    text.remove_prefix(good);
    const size_t bad = ill_formed_prefix(text);
    if (bad > 0) encode_piece(text.substr(0, bad), ids);
    text.remove_prefix(bad);
  }
  return {};
}

Status ByteLevelBpe::encode_well_formed(std::string_view text, std::vector<int32_t>& ids) {
  if (!added_.matches_any() && !tables_.pipeline.nfc) return encode_plain(text, ids);
  Status encoded;
  added_.split(text, [&](std::optional<int32_t> id, std::string_view part) {
    if (id) {
      ids.push_back(*id);
    } else if (encoded) {
      encoded = encode_plain(part, ids);
    }
  });
  return encoded;
}

Status ByteLevelBpe::encode_plain(std::string_view text, std::vector<int32_t>& ids) {
  return cuts_.cut(text, left_out_, [&](std::string_view piece) { encode_piece(piece, ids); });
}

void ByteLevelBpe::count_left_out(std::string_view piece) {
  const auto is_lost = [&](char c) { return byte_ids_[static_cast<unsigned char>(c)] == kNone; };
  const auto first = std::ranges::find_if(piece, is_lost);
  if (first == piece.end() || whole_.contains(piece)) return;
  left_out_.add(std::ranges::count_if(piece, is_lost), piece,
                static_cast<size_t>(first - piece.begin()));
}

void ByteLevelBpe::encode_piece(std::string_view piece, std::vector<int32_t>& ids) {
  if (lacks_bytes_) count_left_out(piece);
  if (piece.size() == 1) {
    const int32_t id = byte_ids_[static_cast<unsigned char>(piece[0])];
    if (id != kNone) ids.push_back(id);
    return;
  }
  if (cache_.append_found(piece, ids)) return;
  const size_t begin = ids.size();
  const auto whole = whole_.find(piece);
  if (whole != whole_.end()) {
    ids.push_back(whole->second);
  } else {
    merge_piece(piece, ids);
  }
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
  nodes_.clear();
  for (const char c : piece) {
    const int32_t id = byte_ids_[static_cast<unsigned char>(c)];
    const auto place = static_cast<int32_t>(nodes_.size());
    if (id != kNone) nodes_.push_back({id, place - 1, place + 1});
  }
  if (nodes_.empty()) return;
  nodes_.back().after = kNone;
  const auto size = static_cast<int32_t>(nodes_.size());
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
  for (size_t cut = text.size(); cut-- > 1;) {
    const char c = text[cut];
    const bool is_space = c == ' ' || (c >= '\t' && c <= '\r');
    if (!is_space) continue;
    const auto before = last_character(text.substr(0, cut));
    // A character that is normalized together with others may become another one.
    const bool may_cut = !before || (cuts_.may_cut(before->code_point, c) &&
                                     (!tables_.pipeline.nfc || begins_nfc(before->code_point)));
    if (may_cut && !added_.touch(text, cut)) return cut;
  }
  return 0;
}

bool ByteLevelBpe::keeps_texts() const {
  const auto changes = [&](const AddedToken& token) {
    return !token.special && (token.lstrip || token.rstrip ||
                              token.content != tables_.tokens[static_cast<size_t>(token.id)]);
  };
  return !may_leave_out() && !tables_.pipeline.nfc && !tables_.pipeline.cuts.prefix_space &&
         std::ranges::none_of(tables_.added, changes);
}

Status ByteLevelBpe::check_end_of_text() const {
  return check_no_text_has(tables_.end_of_text_source, tables_, {tables_.end_of_text},
                           "put the id of one first in eos_token_id of a generation_config.json "
                           "next to it (read next to a tokenizer.json or vocab.json)");
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

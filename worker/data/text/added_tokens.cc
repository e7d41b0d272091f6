#include "worker/data/text/added_tokens.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "worker/data/text/nfc.h"
#include "worker/data/text/unicode.h"
#include "worker/data/text/utf8.h"

namespace trainyard::data {
namespace {

// Where the white space before `end` begins, at `begin` at the earliest.
size_t white_space_before(std::string_view text, size_t begin, size_t end) {
  while (ends_in_white_space(text.substr(begin, end - begin)))
    end -= last_character(text.substr(begin, end - begin))->bytes;
  return end;
}

size_t white_space_behind(std::string_view text, size_t begin) {
  while (begin < text.size()) {
    const Character character = character_at(text, begin);
    if (!white_space_set().contains(character.code_point)) break;
    begin += character.bytes;
  }
  return begin;
}

bool is_ascii(std::string_view text) {
  return std::ranges::none_of(text, [](char c) { return static_cast<unsigned char>(c) >= 0x80; });
}

bool is_single_word(std::string_view text, size_t begin, size_t end) {
  const auto before = last_character(text.substr(0, begin));
  if (before && is_word_character(before->code_point)) return false;
  return end == text.size() || !is_word_character(character_at(text, end).code_point);
}

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens, Normal normal)
    : tokens_(std::move(tokens)), normal_(normal) {
  std::ranges::sort(tokens_, {}, &AddedToken::id);
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const AddedToken& token = tokens_[i];
    Pass& pass = passes_[token.normalized ? 1 : 0];
    std::string spelling;
    if (token.normalized && normal_ == Normal::kNfc) {
      append_nfc(token.content, spelling);
    } else {
      spelling = token.content;
    }
    pass.empty = pass.empty && token.special;
    longest_ = std::max(longest_, spelling.size());
    matches_any_ = matches_any_ || !token.special;
    strips_ = strips_ || (!token.special && (token.lstrip || token.rstrip));
    pass.by_first_byte[static_cast<unsigned char>(spelling[0])].push_back({spelling, i});
  }
  for (Pass& pass : passes_) {
    for (auto& alike : pass.by_first_byte)
      std::ranges::sort(alike, std::greater(), [](const Spelled& s) { return s.spelling.size(); });
  }
}

const AddedTokens::Spelled* AddedTokens::longest_at(const Pass& pass, std::string_view text,
                                                    size_t position) {
  for (const Spelled& one : pass.by_first_byte[static_cast<unsigned char>(text[position])]) {
    if (text.substr(position).starts_with(one.spelling)) return &one;
  }
  return nullptr;
}

void AddedTokens::split(std::string_view text, const TakePart& take) const {
  split_once(passes_[0], text, [&](std::optional<int32_t> id, std::string_view part) {
    if (id) return take(id, part);
    if (normal_ == Normal::kAsIs) return split_once(passes_[1], part, take);
    std::string normalized;
    append_nfc(part, normalized);
    split_once(passes_[1], normalized, take);
  });
}

void AddedTokens::split_once(const Pass& pass, std::string_view text, const TakePart& take) const {
  size_t taken = 0;  // what is before has been handed out
  for (size_t position = pass.empty ? text.size() : 0; position < text.size();) {
    const Spelled* found = longest_at(pass, text, position);
    if (found == nullptr) {
      ++position;
      continue;
    }
    const AddedToken& token = tokens_[found->token];
    size_t begin = position;
    size_t end = begin + found->spelling.size();
    position = end;
    if (token.special || (token.single_word && !is_single_word(text, begin, end))) continue;
    if (token.lstrip) begin = white_space_before(text, taken, begin);
    if (token.rstrip) end = white_space_behind(text, end);
    if (taken < begin) take(std::nullopt, text.substr(taken, begin - taken));
    take(token.id, text.substr(begin, end - begin));
    taken = end;
  }
  if (taken < text.size()) take(std::nullopt, text.substr(taken));
}

bool AddedTokens::touch(std::string_view text, size_t cut) const {
  if (!matches_any_) return false;
  // ASCII text is its own normal form unless a mark follows it.
  const bool is_normalized = normal_ == Normal::kNfc && !passes_[1].empty;
  const size_t begins = cut - std::min(cut, longest_);
  const size_t wanted = cut + longest_ + (is_normalized ? 1 : 0);
  if (wanted > text.size()) return true;
  if (is_normalized && !is_ascii(text.substr(begins, wanted - begins))) return true;
  // How far white space reaches that a token takes along is not known.
  if (strips_ && ends_in_white_space(text.substr(0, cut))) return true;
  for (size_t begin = begins; begin <= cut && begin < text.size(); ++begin) {
    for (const Pass& pass : passes_) {
      for (const Spelled& one : pass.by_first_byte[static_cast<unsigned char>(text[begin])]) {
        if (begin + one.spelling.size() >= cut && text.substr(begin).starts_with(one.spelling))
          return true;
      }
    }
  }
  return false;
}

}  // namespace trainyard::data

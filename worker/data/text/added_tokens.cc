#include "worker/data/text/added_tokens.h"

#include <algorithm>
#include <utility>

#include "worker/data/text/utf8.h"

namespace trainyard::data {
namespace {

// The word characters of Unicode's Technical Standard 18, annex C, as Rust's regex crate has them.
constexpr std::string_view kWord = R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}])";
constexpr std::string_view kWhiteSpaceRun =
    R"([\t-\r \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000}]+)";

// Where the character that ends at `end` begins; `text` is well-formed.
size_t character_before(std::string_view text, size_t end) {
  do {
    --end;
  } while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80);
  return end;
}

size_t white_space_before(std::string_view text, size_t end) {
  while (ends_in_white_space(text.substr(0, end)))
    end = character_before(text, end);
  return end;
}

}  // namespace

Result<AddedTokens> AddedTokens::create(std::vector<AddedToken> tokens) {
  TRAINYARD_ASSIGN(Pattern word, Pattern::compile(kWord, Pattern::Anchor::kAtPosition));
  TRAINYARD_ASSIGN(Pattern white_space,
                   Pattern::compile(kWhiteSpaceRun, Pattern::Anchor::kAtPosition));
  return AddedTokens(std::move(tokens), std::move(word), std::move(white_space));
}

AddedTokens::AddedTokens(std::vector<AddedToken> tokens, Pattern word, Pattern white_space)
    : tokens_(std::move(tokens)), word_(std::move(word)), white_space_(std::move(white_space)) {
  std::ranges::sort(tokens_, {}, &AddedToken::id);
  for (const AddedToken& token : tokens_) {
    Pass& pass = passes_[token.normalized ? 1 : 0];
    pass.empty = false;
    pass.by_first_byte[static_cast<unsigned char>(token.content[0])].push_back(&token);
    longest_ = std::max(longest_, token.content.size());
    matches_any_ = matches_any_ || !token.special;
  }
  for (Pass& pass : passes_) {
    for (auto& alike : pass.by_first_byte)
      std::ranges::sort(alike, std::greater(),
                        [](const AddedToken* t) { return t->content.size(); });
  }
}

const AddedToken* AddedTokens::longest_at(const Pass& pass, std::string_view text,
                                          size_t position) {
  for (const AddedToken* token : pass.by_first_byte[static_cast<unsigned char>(text[position])]) {
    if (text.substr(position).starts_with(token->content)) return token;
  }
  return nullptr;
}

bool AddedTokens::is_single_word(std::string_view text, size_t begin, size_t end) const {
  if (begin > 0 && word_.match_at(text, character_before(text, begin))) return false;
  return end == text.size() || !word_.match_at(text, end);
}

void AddedTokens::split(std::string_view text, const TakePart& take) const {
  split_once(passes_[0], text, [&](std::optional<int32_t> id, std::string_view part) {
    if (id) {
      take(id, part);
    } else {
      split_once(passes_[1], part, take);
    }
  });
}

void AddedTokens::split_once(const Pass& pass, std::string_view text, const TakePart& take) const {
  size_t taken = 0;  // what is before has been handed out
  for (size_t position = pass.empty ? text.size() : 0; position < text.size();) {
    const AddedToken* token = longest_at(pass, text, position);
    if (token == nullptr) {
      ++position;
      continue;
    }
    size_t begin = position;
    size_t end = begin + token->content.size();
    position = end;
    if (token->special || (token->single_word && !is_single_word(text, begin, end))) continue;
    if (token->lstrip) begin = std::max(white_space_before(text, begin), taken);
    if (token->rstrip && end < text.size()) end += white_space_.match_at(text, end).value_or(0);
    if (taken < begin) take(std::nullopt, text.substr(taken, begin - taken));
    take(token->id, text.substr(begin, end - begin));
    taken = end;
  }
  if (taken < text.size()) take(std::nullopt, text.substr(taken));
}

bool AddedTokens::touch(std::string_view text, size_t cut) const {
  if (cut + longest_ > text.size()) return true;
  for (size_t begin = cut - std::min(cut, longest_); begin <= cut && begin < text.size(); ++begin) {
    for (const Pass& pass : passes_) {
      for (const AddedToken* token : pass.by_first_byte[static_cast<unsigned char>(text[begin])]) {
        if (begin + token->content.size() >= cut && text.substr(begin).starts_with(token->content))
          return true;
      }
    }
  }
  return false;
}

}  // namespace trainyard::data

#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trainyard::data {

/// A token that was added to a trained vocabulary: its spelling in a text is that token and is not
/// merged from bytes (`AddedToken` of the tokenizers library).
struct AddedToken {
  std::string content;  ///< UTF-8, not empty
  int32_t id = 0;
  bool special = false;      ///< never read from a text
  bool normalized = false;   ///< looked for in what the others leave
  bool lstrip = false;       ///< takes the white space before it along
  bool rstrip = false;       ///< takes the white space after it along
  bool single_word = false;  ///< only where no word character touches it
  bool operator==(const AddedToken&) const = default;
};

/// Finds added tokens in texts as the tokenizers library does where it encodes special tokens as
/// text: first those that are not normalized, in the rest the others; each time from the left, of
/// several at one place the longest. A special token's spelling hides shorter tokens in it and is
/// text. Immutable.
class AddedTokens {
 public:
  /// Called for each part of a text in order: a token's id, or nullopt for text to be encoded.
  using TakePart = std::function<void(std::optional<int32_t> id, std::string_view text)>;

  /// What is done to a text before the normalized tokens are looked for in it.
  enum class Normal : uint8_t { kAsIs, kNfc };

  AddedTokens(std::vector<AddedToken> tokens, Normal normal);

  /// Whether a text can have any.
  bool matches_any() const { return matches_any_; }
  /// In the order of their ids.
  const std::vector<AddedToken>& tokens() const { return tokens_; }

  /// `text` is well-formed UTF-8; parts to be encoded are normalized. Linear in it for tokens of
  /// bounded length.
  void split(std::string_view text, const TakePart& take) const;

  /// Whether a token or the white space that it takes along ends, begins or goes on at `cut`, or
  /// may do so in what follows the end of `text`: encoding the parts before and after `cut` alone
  /// could then differ. `cut` is before an ASCII white space. True also where that cannot be told:
  /// beside other characters than ASCII that normalization may change into a token.
  bool touch(std::string_view text, size_t cut) const;

 private:
  /// The tokens of one pass.
  struct Spelled {
    std::string spelling;  ///< the content, normalized where the text is
    size_t token = 0;      ///< its place in tokens_
  };
  struct Pass {
    std::array<std::vector<Spelled>, 256> by_first_byte;  ///< the longest first
    bool empty = true;                                    ///< but for special ones
  };
  static const Spelled* longest_at(const Pass& pass, std::string_view text, size_t position);
  void split_once(const Pass& pass, std::string_view text, const TakePart& take) const;

  std::vector<AddedToken> tokens_;
  std::array<Pass, 2> passes_;
  Normal normal_;
  size_t longest_ = 0;
  bool matches_any_ = false;
  bool strips_ = false;  // a token takes white space along
};

}  // namespace trainyard::data

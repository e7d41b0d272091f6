#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/error.h"
#include "worker/data/text/left_out.h"
#include "worker/data/text/split_pattern.h"

namespace trainyard::data {

/// What becomes of the matches of a split (SplitDelimiterBehavior of the tokenizers library).
enum class SplitBehaviour : uint8_t {
  kIsolated,            ///< each is a piece
  kRemoved,             ///< they are left out
  kMergedWithPrevious,  ///< each ends the piece before it
  kMergedWithNext,      ///< each begins the piece behind it
  kContiguous,          ///< adjacent ones are one piece
};

/// One step that cuts texts into pieces.
struct TextSplit {
  enum class Kind : uint8_t { kRegex, kString, kDigits };
  Kind kind = Kind::kRegex;
  std::string pattern;  ///< of kDigits empty
  SplitBehaviour behaviour = SplitBehaviour::kIsolated;
  bool invert = false;     ///< the matches are what lies between them
  bool one_digit = false;  ///< of kDigits: each is a piece, not each number
  bool operator==(const TextSplit&) const = default;
};

/// How a text is cut: by each of `splits` in turn, then by the ByteLevel step.
struct PreTokenization {
  std::vector<TextSplit> splits;
  bool prefix_space = false;  ///< a space is put before a piece that begins with none
  bool gpt2_words = true;     ///< cut last by GPT-2's pattern (`use_regex`)
  bool operator==(const PreTokenization&) const = default;
};

/// Cuts texts into the pieces that are encoded by themselves. Thread-compatible: one thread at a
/// time.
class PreTokenizer {
 public:
  using TakePiece = std::function<void(std::string_view piece)>;

  /// Errors: kInvalidData with what is wrong with a rule's pattern.
  static Result<PreTokenizer> create(const PreTokenization& how);

  /// `text` is well-formed UTF-8; pieces are not empty and valid during the call. Matches that a
  /// split removes are added to `left_out`. Errors: kInvalidData naming the expression that takes
  /// too long on it.
  Status cut(std::string_view text, LeftOut& left_out, const TakePiece& take);

  /// Whether a split removes its matches.
  bool may_leave_out() const;

  /// Whether a text of which `before` and `space`, an ASCII white space, are neighbours may be cut
  /// between them: the pieces are then those of the two parts.
  bool may_cut(char32_t before, char space) const;

 private:
  struct Step {
    std::string expression;  // for messages
    SplitPattern pattern;
    SplitBehaviour behaviour = SplitBehaviour::kIsolated;
    bool invert = false;
  };
  struct Part {
    size_t begin = 0;
    size_t end = 0;
    bool is_match = false;
  };
  PreTokenizer() = default;
  Status cut_from(size_t step, std::string_view text, LeftOut& left_out, const TakePiece& take);
  static std::vector<Part> merged(std::vector<Part> parts, SplitBehaviour behaviour);

  std::vector<Step> steps_;
  size_t prefix_step_ = 0;  // before it a space is put in
  bool prefix_space_ = false;
};

}  // namespace trainyard::data

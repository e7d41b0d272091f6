#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/base/error.h"
#include "worker/data/text/added_tokens.h"
#include "worker/data/text/bpe_cache.h"
#include "worker/data/text/bpe_vocabulary.h"
#include "worker/data/text/pre_tokenizer.h"
#include "worker/data/text/tokenizer.h"

namespace trainyard::data {

/// Byte-level byte-pair encoding (Radford et al. 2019) within the pipeline of a tokenizer.json;
/// what exactly it does with any bytes stands in docs/formats/tokens.md.
class ByteLevelBpe final : public Tokenizer {
 public:
  /// Errors: kInvalidData for an expression that cannot be translated.
  static Result<std::unique_ptr<Tokenizer>> create(BpeVocabulary vocabulary);

  using Tokenizer::encode;
  /// `text` must be smaller than 2 GiB. O(n log n) in the longest piece, O(n) in the rest.
  Status encode(std::string_view text, std::vector<int32_t>& ids) override;
  size_t safe_cut(std::string_view text) const override;
  Status decode_token(int32_t id, std::string& bytes) const override;
  int64_t vocabulary() const override { return static_cast<int64_t>(tables_.tokens.size()); }
  int32_t end_of_text() const override { return tables_.end_of_text; }
  std::string_view name() const override { return is_gpt2_ ? "gpt2-bpe" : "byte-level-bpe"; }
  std::span<const int32_t> before_record() const override { return tables_.pipeline.before; }
  std::span<const int32_t> after_record() const override { return tables_.pipeline.after; }
  const Hash128& identity() const override { return identity_; }
  bool may_leave_out() const override { return lacks_bytes_ || cuts_.may_leave_out(); }
  bool keeps_texts() const override;
  LeftOut take_left_out() override { return std::exchange(left_out_, {}); }
  Status check_end_of_text() const override;
  std::vector<std::string> notes() const override { return tables_.notes; }

 private:
  // What a pair of adjacent tokens becomes; kNoMerge in `rank` when it has no rule.
  struct Rule {
    uint64_t pair = 0;
    uint32_t rank = kNoMerge;
    int32_t result = 0;
  };
  // One token of the piece being merged, in a doubly linked list by position.
  struct Node {
    int32_t id;
    int32_t before;
    int32_t after;
  };
  // A possible merge at `position`; stale when the tokens there have changed since.
  struct Candidate {
    uint32_t rank;
    int32_t position;
    uint64_t pair;
  };
  static constexpr uint32_t kNoMerge = ~uint32_t{0};

  ByteLevelBpe(BpeVocabulary vocabulary, PreTokenizer cuts);
  const Rule* find_rule(uint64_t pair) const;
  uint64_t pair_at(int32_t position) const;
  Status encode_well_formed(std::string_view text, std::vector<int32_t>& ids);
  Status encode_plain(std::string_view text, std::vector<int32_t>& ids);
  void encode_piece(std::string_view piece, std::vector<int32_t>& ids);
  void merge_piece(std::string_view piece, std::vector<int32_t>& ids);
  void count_left_out(std::string_view piece);
  void push_candidate(int32_t position);

  BpeVocabulary tables_;
  AddedTokens added_;
  PreTokenizer cuts_;
  bool is_gpt2_;
  Hash128 identity_;
  std::array<int32_t, 256> byte_ids_;
  bool lacks_bytes_ = false;
  LeftOut left_out_;
  std::vector<Rule> rules_;  // open addressing, a power of two of places, at most half full
  std::unordered_map<std::string_view, int32_t> whole_;  // pieces that are not merged
  BpeCache cache_;
  std::vector<Node> nodes_;            // scratch of merge_piece, as is the next
  std::vector<Candidate> candidates_;  // a heap, lowest rank, then lowest position, first
};

}  // namespace trainyard::data

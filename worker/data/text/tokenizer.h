#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/error.h"
#include "common/hash/hash.h"
#include "worker/data/text/left_out.h"

namespace trainyard::data {

/// Turns bytes into token ids and back. Implementations are thread-compatible: one thread at a time
/// (encoders keep a cache).
///
/// Contract: decode(encode(x)) == x for every sequence of bytes, valid UTF-8 or not, where
/// keeps_texts().
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// Appends the ids of `text` to `ids`. The text is data: a spelled-out special token such as
  /// "<|endoftext|>" is encoded as the characters it consists of, never as the special id. Errors:
  /// kInvalidData naming an expression of the tokenizer that takes too long on this text; `ids`
  /// then has a part of them.
  virtual Status encode(std::string_view text, std::vector<int32_t>& ids) = 0;

  /// Where `text`, which goes on after its end, may be cut so that encoding the parts one after the
  /// other gives the ids of the whole: the largest such offset that can be seen, 0 when none.
  virtual size_t safe_cut(std::string_view text) const = 0;

  /// Appends the bytes of `id`. Special tokens give their spelling. Errors: kInvalidData for an id
  /// outside the vocabulary.
  virtual Status decode_token(int32_t id, std::string& bytes) const = 0;

  virtual int64_t vocabulary() const = 0;
  /// The id put after every document.
  virtual int32_t end_of_text() const = 0;
  /// The tokens that the tokenizer puts before and after a record, a whole document or prompt;
  /// encode() does not.
  virtual std::span<const int32_t> before_record() const { return {}; }
  virtual std::span<const int32_t> after_record() const { return {}; }
  /// A name for people: "bytes", "gpt2-bpe", "byte-level-bpe".
  virtual std::string_view name() const = 0;
  /// Equal hashes mean equal ids for every text.
  virtual const Hash128& identity() const = 0;

  /// Whether encode() leaves out parts of some texts, as the tokenizers library does: bytes without
  /// a token, and matches that a split removes.
  virtual bool may_leave_out() const { return false; }
  /// Whether decoding gives every text back as it was. False where a tokenizer.json changes some:
  /// normalization, a prefix space, what take_left_out() counts, added tokens with lstrip or rstrip
  /// and the white space beside them, or that the model writes in the same characters.
  virtual bool keeps_texts() const { return true; }
  /// What encode() has left out since the last call.
  virtual LeftOut take_left_out() { return {}; }
  /// Refuses an end of text that a text may be encoded to: documents would end inside texts.
  /// Errors: kInvalidData naming the file that names it.
  virtual Status check_end_of_text() const { return {}; }
  /// Where the tokenizer's files contradict each other; for people.
  virtual std::vector<std::string> notes() const { return {}; }

  /// The ids of a text on which no expression takes too long.
  std::vector<int32_t> encode(std::string_view text);
  Result<std::string> decode(std::span<const int32_t> ids) const;
  /// Bytes of text that each id stands for; 0 for those around a record.
  std::vector<int32_t> token_lengths() const;
};

/// The files of a tokenizer.
struct TokenizerFiles {
  std::filesystem::path vocabulary;           ///< empty: "bytes", which needs none
  std::filesystem::path merges;               ///< empty: `vocabulary` is a tokenizer.json
  std::vector<std::filesystem::path> unread;  ///< of other tokenizers in the folder, not read
};

/// Finds the tokenizer at `path`: "bytes" (by that word, also at the end of an absolute path to
/// nothing), a `tokenizer.json` of any name, or a folder. Of several in a folder one counts, as in
/// transformers: `tokenizer.json`, else `vocab.json` and `merges.txt`; else OpenAI's `encoder.json`
/// and `vocab.bpe`. Errors: kNotFound, kIo.
Result<TokenizerFiles> find_tokenizer(const std::filesystem::path& path);

/// Opens what find_tokenizer() finds. Errors: as those, and kInvalidData naming file and place,
/// also for what a tokenizer_config.json or added_tokens.json beside it changes.
Result<std::unique_ptr<Tokenizer>> open_tokenizer(const std::filesystem::path& path);

}  // namespace trainyard::data

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

namespace trainyard::data {

/// Turns bytes into token ids and back. Implementations are thread-compatible: one thread at a time
/// (encoders keep a cache).
///
/// Contract: decode(encode(x)) == x for every sequence of bytes, valid UTF-8 or not.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// Appends the ids of `text` to `ids`. The text is data: a spelled-out special token such as
  /// "<|endoftext|>" is encoded as the characters it consists of, never as the special id.
  virtual void encode(std::string_view text, std::vector<int32_t>& ids) = 0;

  /// Where `text`, which goes on after its end, may be cut so that encoding the parts one after the
  /// other gives the ids of the whole: the largest such offset that can be seen, 0 when none.
  virtual size_t safe_cut(std::string_view text) const = 0;

  /// Appends the bytes of `id`. Special tokens give their spelling. Errors: kInvalidData for an id
  /// outside the vocabulary.
  virtual Status decode_token(int32_t id, std::string& bytes) const = 0;

  virtual int64_t vocabulary() const = 0;
  /// The id put after every document.
  virtual int32_t end_of_text() const = 0;
  /// A name for people: "bytes", "gpt2-bpe".
  virtual std::string_view name() const = 0;
  /// Equal hashes mean equal ids for every text.
  virtual const Hash128& identity() const = 0;

  std::vector<int32_t> encode(std::string_view text);
  Result<std::string> decode(std::span<const int32_t> ids) const;
  /// Bytes that each id stands for.
  std::vector<int32_t> token_lengths() const;
};

/// Opens "bytes" (by that word, also at the end of an absolute path to nothing), or a folder with
/// GPT-2's `encoder.json` + `vocab.bpe` (or Hugging Face's `vocab.json` + `merges.txt`, or
/// `tokenizer.json`), or a `tokenizer.json`. Errors: kNotFound, kIo; kInvalidData naming file and
/// place.
Result<std::unique_ptr<Tokenizer>> open_tokenizer(const std::filesystem::path& path);

}  // namespace trainyard::data

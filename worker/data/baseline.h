#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>

namespace trainyard::data {

/// Counts which byte follows which: the simplest model a language model must beat.
class ByteBigram {
 public:
  ByteBigram();

  /// The byte before a document's first is taken as 0.
  void begin_document() { before_ = 0; }
  /// Goes on with the document: call with any pieces of it, in order.
  void add(std::string_view text);

  /// Mean of -log2 p(byte | byte before) over the pairs counted in `held_out`, with p from the
  /// counts here plus one for each of the 256 bytes; 0 when nothing was counted there.
  double bits_per_byte(const ByteBigram& held_out) const;

 private:
  using Counts = std::array<std::array<int64_t, 256>, 256>;  // [before][byte]
  std::unique_ptr<Counts> counts_;
  unsigned char before_ = 0;
};

/// How large a text becomes under `gzip -9`: zlib at level 9, one gzip member, without a name.
class GzipSize {
 public:
  GzipSize();
  ~GzipSize();
  GzipSize(GzipSize&&) noexcept;
  GzipSize& operator=(GzipSize&&) noexcept;

  void add(std::string_view text);
  /// The bytes of the whole member. Call once, at the end.
  int64_t finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trainyard::data

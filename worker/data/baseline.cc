#include "worker/data/baseline.h"

#include <algorithm>
#include <cmath>
#include <vector>
#include <zlib.h>

#include "common/base/check.h"

namespace trainyard::data {

ByteBigram::ByteBigram() : counts_(std::make_unique<Counts>()) {}

void ByteBigram::add(std::string_view text) {
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    ++(*counts_)[before_][byte];
    before_ = byte;
  }
}

double ByteBigram::bits_per_byte(const ByteBigram& held_out) const {
  double bits = 0;
  int64_t bytes = 0;
  for (size_t before = 0; before < 256; ++before) {
    int64_t total = 256;
    for (const int64_t count : (*counts_)[before])
      total += count;
    for (size_t byte = 0; byte < 256; ++byte) {
      const int64_t seen = (*held_out.counts_)[before][byte];
      if (seen == 0) continue;
      const double p =
          static_cast<double>((*counts_)[before][byte] + 1) / static_cast<double>(total);
      bits -= static_cast<double>(seen) * std::log2(p);
      bytes += seen;
    }
  }
  return bytes == 0 ? 0 : bits / static_cast<double>(bytes);
}

struct GzipSize::State {
  z_stream stream = {};
  std::vector<unsigned char> discarded = std::vector<unsigned char>(1 << 16);
  int64_t bytes = 0;

  State() {
    constexpr int kGzipFormat = 15 + 16;  // the largest window, a gzip header (zlib.h)
    TRAINYARD_CHECK(deflateInit2(&stream, 9, Z_DEFLATED, kGzipFormat, 8, Z_DEFAULT_STRATEGY) ==
                    Z_OK);
  }
  ~State() { deflateEnd(&stream); }

  void run(int flush) {
    do {
      stream.next_out = discarded.data();
      stream.avail_out = static_cast<uInt>(discarded.size());
      TRAINYARD_CHECK(deflate(&stream, flush) != Z_STREAM_ERROR);
      bytes += static_cast<int64_t>(discarded.size()) - stream.avail_out;
    } while (stream.avail_out == 0);
  }
};

GzipSize::GzipSize() : state_(std::make_unique<State>()) {}
GzipSize::~GzipSize() = default;
GzipSize::GzipSize(GzipSize&&) noexcept = default;
GzipSize& GzipSize::operator=(GzipSize&&) noexcept = default;

void GzipSize::add(std::string_view text) {
  constexpr size_t kPiece = size_t{1} << 30;  // zlib counts in 32 bits
  while (!text.empty()) {
    const std::string_view piece = text.substr(0, kPiece);
    text.remove_prefix(piece.size());
    state_->stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(piece.data()));
    state_->stream.avail_in = static_cast<uInt>(piece.size());
    state_->run(Z_NO_FLUSH);
  }
}

int64_t GzipSize::finish() {
  state_->run(Z_FINISH);
  return state_->bytes;
}

}  // namespace trainyard::data

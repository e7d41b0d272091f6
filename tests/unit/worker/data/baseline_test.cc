#include "worker/data/baseline.h"

#include <cmath>
#include <random>
#include <string>
#include <vector>
#include <zlib.h>

#include <gtest/gtest.h>

namespace trainyard::data {
namespace {

TEST(ByteBigramTest, EqualsTheFormulaByHand) {
  ByteBigram train;
  train.begin_document();
  train.add("abab");
  train.begin_document();
  train.add("a");
  // After 0: a twice. After a: b twice. After b: a once.
  ByteBigram held_out;
  held_out.begin_document();
  held_out.add("ab");
  held_out.add("c");
  const double wanted = -(std::log2(3.0 / 258) + std::log2(3.0 / 258) + std::log2(1.0 / 257)) / 3;
  EXPECT_NEAR(train.bits_per_byte(held_out), wanted, 1e-12);
}

TEST(ByteBigramTest, KnowsNothingIsEightBits) {
  ByteBigram held_out;
  held_out.add("anything at all");
  EXPECT_NEAR(ByteBigram().bits_per_byte(held_out), 8, 1e-12);
  EXPECT_EQ(ByteBigram().bits_per_byte(ByteBigram()), 0);
}

TEST(GzipSizeTest, EqualsOneWholeMemberWhateverThePieces) {
  std::mt19937 random(1);
  std::string text;
  while (text.size() < 300'000)
    text += "word" + std::to_string(random() % 1000) + ' ';
  // zlib's one-call form, a zlib stream: 6 bytes around the data where gzip has 18.
  std::vector<unsigned char> packed(compressBound(text.size()));
  uLongf size = packed.size();
  ASSERT_EQ(
      compress2(packed.data(), &size, reinterpret_cast<const Bytef*>(text.data()), text.size(), 9),
      Z_OK);
  for (const size_t piece : {1'000'000UL, 65'536UL, 777UL}) {
    GzipSize gzip;
    for (size_t i = 0; i < text.size(); i += piece)
      gzip.add(std::string_view(text).substr(i, piece));
    EXPECT_EQ(gzip.finish(), static_cast<int64_t>(size) + 12);
  }
}

}  // namespace
}  // namespace trainyard::data

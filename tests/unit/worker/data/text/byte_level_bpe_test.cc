#include "worker/data/text/byte_level_bpe.h"

#include <algorithm>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/byte_vocabulary.h"
#include "tests/support/paths.h"
#include "tests/unit/worker/data/support.h"
#include "tests/unit/worker/data/text/gpt2_files.h"
#include "worker/data/text/bpe_vocabulary.h"

namespace trainyard::data {
namespace {

using test::open_gpt2;
using test::slurp;
using testing::ElementsAre;
using testing::ElementsAreArray;

class Gpt2Test : public testing::Test {
 protected:
  void SetUp() override {
    gpt2_ = open_gpt2();
    if (gpt2_ == nullptr) GTEST_FAIL();
  }

  std::string random_bytes(std::mt19937_64& random, size_t size) {
    // Mostly text, some of it cut in the middle of characters.
    static constexpr std::string_view kParts[] = {"the ",         " and",
                                                  "  ",           "\n",
                                                  "'s",           "\xC3\xA9",
                                                  "\xE4\xB8\xAD", "\xF0\x9F\x98\x80",
                                                  "\xFF",         "\xC3",
                                                  "\xE4\xB8",     "\xF0\x9F",
                                                  "\x80",         "\xC2\xA0",
                                                  "\xE2\x80\x83", "12",
                                                  "!?",           std::string_view("\0x", 2)};
    std::string text;
    while (text.size() < size) {
      const uint64_t choice = random() % (std::size(kParts) + 1);
      if (choice == std::size(kParts))
        text.push_back(static_cast<char>(random()));
      else
        text += kParts[choice];
    }
    return text;
  }

  std::unique_ptr<Tokenizer> gpt2_;
};

TEST_F(Gpt2Test, EqualsTheReferenceTokenForToken) {
  const auto fixture = nlohmann::json::parse(
      slurp(testing_support::source_path("tests/fixtures/tokenizer/gpt2_samples.json")));
  ASSERT_GE(fixture["samples"].size(), 300U);
  for (const auto& sample : fixture["samples"]) {
    const auto text = sample["text"].get<std::string>();
    ASSERT_THAT(gpt2_->encode(text), ElementsAreArray(sample["ids"].get<std::vector<int32_t>>()))
        << sample["name"];
    ASSERT_EQ(gpt2_->decode(gpt2_->encode(text)).value(), text);
  }
}

TEST_F(Gpt2Test, HasGpt2sVocabulary) {
  EXPECT_EQ(gpt2_->vocabulary(), 50257);
  EXPECT_EQ(gpt2_->end_of_text(), 50256);
  const std::vector<int32_t> end = {50256};
  EXPECT_EQ(gpt2_->decode(end).value(), "<|endoftext|>");
  EXPECT_FALSE(gpt2_->decode(std::vector<int32_t>{50257}));
  EXPECT_FALSE(gpt2_->decode(std::vector<int32_t>{-1}));
}

TEST_F(Gpt2Test, NoByteIsLost) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 2000; ++i) {
    const std::string text = random_bytes(random, i % 97);
    ASSERT_EQ(gpt2_->decode(gpt2_->encode(text)).value(), text);
  }
}

TEST_F(Gpt2Test, BadBytesArePiecesOfTheirOwn) {
  // "a  " before a bad byte is encoded as a text that ends there.
  const auto join = [&](std::initializer_list<std::string_view> parts) {
    std::vector<int32_t> ids;
    for (const std::string_view part : parts)
      EXPECT_TRUE(gpt2_->encode(part, ids));
    return ids;
  };
  EXPECT_EQ(gpt2_->encode("a  \xFF\xFE b"), join({"a  ", "\xFF\xFE", " b"}));
  EXPECT_EQ(gpt2_->encode("\xE4\xB8"), join({"\xE4\xB8"}));
  EXPECT_EQ(gpt2_->encode("\xED\xA0\x80x"), join({"\xED\xA0\x80", "x"})) << "a surrogate";
}

TEST_F(Gpt2Test, SafeCutsDoNotChangeTheTokens) {
  std::mt19937_64 random(4);
  int64_t cuts = 0;
  for (int i = 0; i < 1000; ++i) {
    const std::string text = random_bytes(random, 60);
    const size_t cut = gpt2_->safe_cut(text);
    ASSERT_LE(cut, text.size());
    cuts += cut > 0 ? 1 : 0;
    const std::vector<int32_t> whole = gpt2_->encode(text);
    for (size_t end = 1; end <= text.size(); ++end) {
      // Cutting where a reader that has seen only [0, end) may cut.
      const size_t early = gpt2_->safe_cut(std::string_view(text).substr(0, end));
      std::vector<int32_t> ids = gpt2_->encode(std::string_view(text).substr(0, early));
      ASSERT_TRUE(gpt2_->encode(std::string_view(text).substr(early), ids));
      ASSERT_EQ(ids, whole);
    }
  }
  EXPECT_GT(cuts, 500);
}

TEST_F(Gpt2Test, RepeatedEncodingUsesTheCacheAndGivesTheSame) {
  std::mt19937_64 random(5);
  std::vector<std::string> texts;
  std::vector<std::vector<int32_t>> first;
  for (int i = 0; i < 3000; ++i) {
    texts.push_back(" " + std::to_string(random() % 100'000) + "ing" + random_bytes(random, 9));
    first.push_back(gpt2_->encode(texts.back()));
  }
  for (size_t i = 0; i < texts.size(); ++i)
    ASSERT_EQ(gpt2_->encode(texts[i]), first[i]);
}

TEST_F(Gpt2Test, LongPiecesTakeNoQuadraticTime) {
  // Minutes if it were quadratic; a fraction of a second as it is.
  for (const std::string_view unit : {"a", " ", "\xE4\xB8\xAD", "\xFF", "="}) {
    std::string text;
    while (text.size() < 400'000)
      text += unit;
    EXPECT_EQ(gpt2_->decode(gpt2_->encode(text)).value(), text);
  }
}

TEST_F(Gpt2Test, TokenLengthsAddUpToTheText) {
  const std::vector<int32_t> lengths = gpt2_->token_lengths();
  std::mt19937_64 random(6);
  const std::string text = random_bytes(random, 5000);
  int64_t bytes = 0;
  for (const int32_t id : gpt2_->encode(text))
    bytes += lengths[static_cast<size_t>(id)];
  EXPECT_EQ(bytes, static_cast<int64_t>(text.size()));
}

// The algorithm as the paper states it: of all adjacent pairs the one of lowest rank, the leftmost
// first, until none has a rule.
std::vector<int32_t> merge_plainly(const BpeVocabulary& tables, std::vector<int32_t> ids) {
  while (true) {
    size_t best_rank = tables.merges.size();
    size_t best_place = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      for (size_t rank = 0; rank < best_rank; ++rank) {
        const BpeMerge& merge = tables.merges[rank];
        if (merge.left != ids[i] || merge.right != ids[i + 1]) continue;
        best_rank = rank;
        best_place = i;
      }
    }
    if (best_rank == tables.merges.size()) return ids;
    ids[best_place] = tables.merges[best_rank].result;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best_place) + 1);
  }
}

TEST(ByteLevelBpeTest, MergesAsThePlainAlgorithmForRandomRules) {
  std::mt19937_64 random(7);
  for (int trial = 0; trial < 40; ++trial) {
    BpeVocabulary tables;
    for (int byte = 0; byte < 256; ++byte) {
      tables.tokens.emplace_back(1, static_cast<char>(byte));
      tables.whole.push_back(static_cast<int32_t>(tables.tokens.size()) - 1);
    }
    std::vector<int32_t> usable = {'a', 'b', 'c'};
    while (tables.merges.size() < 30) {
      const int32_t left = usable[random() % usable.size()];
      const int32_t right = usable[random() % usable.size()];
      const std::string joined =
          tables.tokens[static_cast<size_t>(left)] + tables.tokens[static_cast<size_t>(right)];
      const auto same_pair = [&](const BpeMerge& m) { return m.left == left && m.right == right; };
      if (std::ranges::any_of(tables.merges, same_pair)) continue;
      auto known = std::ranges::find(tables.tokens, joined);
      if (known == tables.tokens.end()) {
        tables.tokens.push_back(joined);
        known = tables.tokens.end() - 1;
        usable.push_back(static_cast<int32_t>(known - tables.tokens.begin()));
      }
      tables.merges.push_back({left, right, static_cast<int32_t>(known - tables.tokens.begin())});
    }
    tables.end_of_text = 0;
    // Rules in any order, so that a merge may make a pair of lower rank than itself.
    std::shuffle(tables.merges.begin(), tables.merges.end(), random);
    const auto tokenizer = ByteLevelBpe::create(tables).value();
    for (int i = 0; i < 60; ++i) {
      std::string word;
      std::vector<int32_t> bytes;
      for (uint64_t n = 1 + random() % 30; n > 0; --n) {
        word.push_back(static_cast<char>('a' + random() % 3));
        bytes.push_back(word.back());
      }
      ASSERT_EQ(tokenizer->encode(word), merge_plainly(tables, bytes)) << word;
    }
  }
}

TEST(ByteLevelBpeTest, CountsWhatItLeavesOut) {
  const test::TemporaryFolder folder;
  nlohmann::json root = testing_support::small_tokenizer_json(128);
  const auto left_out = [&](std::string_view text) {
    test::spill(folder.path() / "tokenizer.json", root.dump());
    const auto tokenizer = open_tokenizer(folder.path()).value();
    EXPECT_TRUE(tokenizer->may_leave_out());
    const auto ids = tokenizer->encode(text);
    const LeftOut lost = tokenizer->take_left_out();
    std::vector<int32_t> again;
    EXPECT_TRUE(tokenizer->encode(text, again)) << "from the cache";
    EXPECT_EQ(again, ids);
    EXPECT_EQ(tokenizer->take_left_out().bytes, lost.bytes);
    if (!root["model"].contains("ignore_merges")) {
      EXPECT_EQ(tokenizer->decode(ids).value().size() + static_cast<size_t>(lost.bytes),
                text.size());
    }
    return std::pair(lost.bytes, lost.example);
  };
  using testing::Pair;
  EXPECT_THAT(left_out("plain abc\n"), Pair(0, ""));
  EXPECT_THAT(left_out("na\xC3\xAFve caf\xC3\xA9"), Pair(4, "na\xC3\xAFve"));
  EXPECT_THAT(left_out("a\xFF\xFE b"), Pair(2, "\xFF\xFE"));
  EXPECT_THAT(left_out("\xC3\xA9"), Pair(2, "\xC3\xA9"));
  EXPECT_THAT(left_out(std::string(31, 'x') + "\xC3\xA9"),
              Pair(2, std::string(16, 'x') + "\xC3\xA9"));
  EXPECT_EQ(on_one_line("\n\f\n"), R"(\x0A\x0C\x0A)");
  // A piece that is a token loses nothing.
  root["model"]["ignore_merges"] = true;
  root["model"]["vocab"][testing_support::written(0xC3) + testing_support::written(0xA9)] = 131;
  EXPECT_THAT(left_out("\xC3\xA9 \xC3\xA9"), Pair(2, " \xC3\xA9"));
  // What a split removes.
  root = testing_support::small_tokenizer_json();
  root["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"},
         {"pattern", {{"String", "--"}}},
         {"behavior", "Removed"},
         {"invert", false}},
        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}}}};
  EXPECT_THAT(left_out("a--b----c-d"), Pair(6, "a--b----c-d"));
  EXPECT_THAT(left_out(std::string(20, 'x') + "--"), Pair(2, std::string(16, 'x') + "--"));
  EXPECT_FALSE(open_tokenizer("bytes").value()->may_leave_out());
}

TEST(ByteTokenizerTest, TheByteIsTheId) {
  const auto bytes = open_tokenizer("bytes").value();
  EXPECT_EQ(bytes->vocabulary(), 256);
  std::string all;
  for (int byte = 0; byte < 256; ++byte)
    all.push_back(static_cast<char>(byte));
  const auto ids = bytes->encode(all);
  ASSERT_EQ(ids.size(), 256U);
  for (int32_t byte = 0; byte < 256; ++byte)
    ASSERT_EQ(ids[static_cast<size_t>(byte)], byte);
  EXPECT_EQ(bytes->decode(ids).value(), all);
  EXPECT_FALSE(bytes->decode(std::vector<int32_t>{256}));
  EXPECT_EQ(bytes->safe_cut("abc"), 3U);
}

TEST(ByteTokenizerTest, IdentityIsFixedForEver) {
  EXPECT_EQ(to_hex(open_tokenizer("bytes").value()->identity()),
            "749d21c2a2f44dae367e90697101348e");
}

TEST_F(Gpt2Test, IdentityIsFixedForEver) {
  EXPECT_EQ(to_hex(gpt2_->identity()), "46df9e84b2018f8d7579a8cd48dbaf39");
}

}  // namespace
}  // namespace trainyard::data

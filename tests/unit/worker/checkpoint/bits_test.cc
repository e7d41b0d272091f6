// Every single bit of every file of a checkpoint, and every length each of them can be cut to: all
// of them on the shortest way through the code that finds the damage, a sample through everything a
// reader does.

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/extent.h"
#include "tests/unit/worker/checkpoint/job_directory.h"
#include "tests/unit/worker/checkpoint/memory_file_system.h"
#include "worker/checkpoint/state_hash.h"
#include "worker/checkpoint/store.h"

namespace trainyard::checkpoint::testing {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kChunkBytes = 4096;
constexpr int64_t kRanks = 2;
constexpr int64_t kRows = 61;
constexpr int64_t kColumns = 101;  // 3 x 61 x 101 x 4 bytes: 74 KB
constexpr size_t kLeastBytes = 64 << 10;

/// Two checkpoints of two ranks, steps 10 and 20, large enough to have many chunks.
class BitsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    run_ranks(kRanks, [&](CommitGroup& group) {
      const auto started = start_generation(files_, job_.plan(1, std::nullopt), group,
                                            [](CheckpointReader&) { return Status(); });
      ASSERT_TRUE(started) << started.error().message;
      CheckpointWriter writer(borrowed(files_), group, {job_.root(), {}, kChunkBytes}, *started);
      for (const int64_t step : {10, 20}) {
        const std::vector<float> values = values_at(step);
        ASSERT_TRUE(writer.begin(snapshot(values, step, group.rank())));
        const auto outcome = writer.wait(std::chrono::seconds(60));
        ASSERT_TRUE(outcome && outcome->status);
      }
    });
    hashes_[10] = hash_of(10);
    hashes_[20] = hash_of(20);
    ASSERT_NE(hashes_[10], hashes_[20]);
  }

  static std::vector<float> values_at(int64_t step) {
    std::vector<float> values(static_cast<size_t>(3 * kRows * kColumns));
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(step) + 1.0F / static_cast<float>(i + 1);
    return values;
  }
  /// Rank 0 has the first rows of each tensor, rank 1 the rest.
  static Snapshot snapshot(std::span<const float> values, int64_t step, int rank) {
    Snapshot made{.step = step, .samples_consumed = step * 64};
    made.scalars = {{kOptimizerStepScalar, step}, {kSeedScalar, uint64_t{7}}};
    const int64_t first = rank == 0 ? 0 : kRows / 2;
    const int64_t count = rank == 0 ? kRows / 2 : kRows - kRows / 2;
    int64_t at = 0;
    for (const TensorKind kind :
         {TensorKind::kParameter, TensorKind::kFirstMoment, TensorKind::kSecondMoment}) {
      made.slices.push_back(
          {"w",
           kind,
           DType::kFloat32,
           {kRows, kColumns},
           {{first, 0}, {count, kColumns}},
           std::as_bytes(values.subspan(static_cast<size_t>(at + first * kColumns),
                                        static_cast<size_t>(count * kColumns)))});
      at += kRows * kColumns;
    }
    return made;
  }
  Hash128 hash_of(int64_t step) {
    const auto reader =
        CheckpointReader::open(files_, job_.root() / directory_name({1, step}), Verify::kAll);
    EXPECT_TRUE(reader);
    return *state_hash_of(**reader);
  }

  std::filesystem::path newest() const { return job_.root() / "g1-step-0000000020"; }
  std::filesystem::path newest(const std::string& file) const { return newest() / file; }
  std::string& content(const std::filesystem::path& path) { return files_.content(path); }
  static void flip(std::string& text, size_t at, int bit) {
    text[at] = static_cast<char>(text[at] ^ (1 << bit));
  }

  /// All a reader does: the step of the newest good one, what it holds compared, and that a
  /// rejected newest one was said so. Negative for anything else.
  int64_t newest_good() {
    std::vector<std::string> notes;
    const auto reader = open_newest_good(files_, job_.root(), std::nullopt, Verify::kAll, &notes);
    if (!reader) return -1;
    const int64_t step = (*reader)->manifest().step;
    const auto hash = state_hash_of(**reader);
    if (!hash || *hash != hashes_[step]) return -2;
    if (step == 10 && (notes.size() != 1 || notes[0].rfind("g1-step-0000000020: ", 0) != 0))
      return -3;
    return step;
  }

  MemoryFileSystem files_;
  JobDirectory job_{"/job"};
  std::map<int64_t, Hash128> hashes_;
};

// Every so many cases one goes through everything.
constexpr size_t kThrough = 997;

// Every byte in the plain build; a sanitizer, fifty times slower, looks at every thirty-first.
constexpr size_t kStride = testing_support::kSanitized ? 31 : 1;

TEST_F(BitsTest, EveryBitOfEveryShardIsFoundAndTheOneBeforeUsed) {
  size_t bytes = 0;
  int64_t flips = 0;
  for (int64_t shard = 0; shard < kRanks; ++shard) {
    std::string& text = content(newest(shard_file_name(shard, kRanks)));
    bytes += text.size();
    const auto reader = CheckpointReader::open(files_, newest(), Verify::kManifest);
    ASSERT_TRUE(reader);
    for (size_t at = 0; at < text.size(); at += kStride) {
      const auto chunk = static_cast<int64_t>(at) / kChunkBytes;
      for (int bit = 0; bit < 8; ++bit, ++flips) {
        flip(text, at, bit);
        const Status status = (*reader)->verify_chunk(shard, chunk);
        ASSERT_TRUE(!status && status.error().code == ErrorCode::kInvalidData)
            << "shard " << shard << " byte " << at << " bit " << bit;
        if (static_cast<size_t>(flips) % kThrough == 0) {
          ASSERT_EQ(newest_good(), 10) << "shard " << shard << " byte " << at << " bit " << bit;
        }
        flip(text, at, bit);
      }
      if (at % static_cast<size_t>(kChunkBytes) < kStride) {
        ASSERT_TRUE((*reader)->verify_chunk(shard, chunk));
      }
    }
  }
  EXPECT_GE(bytes, kLeastBytes);
  EXPECT_EQ(newest_good(), 20);
}

TEST_F(BitsTest, EveryBitOfTheManifestIsFoundAndTheOneBeforeUsed) {
  std::string& text = content(newest("manifest.json"));
  size_t flips = 0;
  for (size_t at = 0; at < text.size(); at += kStride) {
    for (int bit = 0; bit < 8; ++bit, ++flips) {
      flip(text, at, bit);
      const auto manifest = decode_manifest(text);
      ASSERT_TRUE(!manifest && manifest.error().code == ErrorCode::kInvalidData)
          << "byte " << at << " bit " << bit;
      if (flips % kThrough == 0) {
        ASSERT_EQ(newest_good(), 10) << "byte " << at;
      }
      flip(text, at, bit);
    }
  }
  EXPECT_EQ(newest_good(), 20);
}

TEST_F(BitsTest, EveryBitOfTheLineageRecordIsFoundAndToldAgainFromAManifest) {
  const std::filesystem::path path = job_.root() / "lineage/1.json";
  const std::string whole = content(path);
  for (size_t at = 0; at < whole.size(); at += kStride) {
    for (int bit = 0; bit < 8; ++bit) {
      flip(content(path), at, bit);
      const auto stored = load_lineage(files_, job_.root());
      ASSERT_TRUE(stored);
      ASSERT_EQ(stored->notes.size(), 1U) << "byte " << at << " bit " << bit;
      ASSERT_THAT(stored->notes[0], HasSubstr("lineage/1.json"));
      if (at % 16 == 0) {
        ASSERT_EQ(newest_good(), 20) << "byte " << at;
      }
      content(path) = whole;
    }
  }
}

TEST_F(BitsTest, NoBitOfLatestMisleadsAReaderOrTheNextCommit) {
  const std::filesystem::path path = job_.root() / kLatestLink;
  const std::string whole = *files_.read_link(path);
  for (size_t at = 0; at < whole.size(); at += kStride) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string target = whole;
      flip(target, at, bit);
      ASSERT_TRUE(files_.remove_file(path));
      ASSERT_TRUE(files_.symlink(target, path));
      ASSERT_EQ(newest_good(), 20) << target;
      ASSERT_EQ(point_latest(files_, job_.root(), {1, 20}), "");
      ASSERT_EQ(*files_.read_link(path), whole) << "after " << target;
    }
  }
}

TEST_F(BitsTest, EveryLengthOfEveryFileIsFoundAndTheOneBeforeUsed) {
  for (int64_t shard = 0; shard < kRanks; ++shard) {
    std::string& text = content(newest(shard_file_name(shard, kRanks)));
    const std::string whole = text;
    for (size_t size = whole.size(); size > 0;) {
      size -= std::min(size, kStride);
      text.resize(size);
      const auto reader = CheckpointReader::open(files_, newest(), Verify::kManifest);
      ASSERT_TRUE(!reader && reader.error().code == ErrorCode::kInvalidData) << size;
      if (size % kThrough == 0) {
        ASSERT_EQ(newest_good(), 10) << size;
      }
    }
    text = whole + '\0';
    EXPECT_EQ(newest_good(), 10) << "a byte more";
    text = whole;
  }
  std::string& text = content(newest("manifest.json"));
  const std::string whole = text;
  for (size_t size = 0; size < whole.size(); size += kStride) {
    const auto manifest = decode_manifest(std::string_view(whole).substr(0, size));
    ASSERT_TRUE(!manifest && manifest.error().code == ErrorCode::kInvalidData) << size;
    if (size % 97 == 0) {
      text = whole.substr(0, size);
      ASSERT_EQ(newest_good(), 10) << size;
    }
  }
  text = whole;
  EXPECT_EQ(newest_good(), 20);
}

}  // namespace
}  // namespace trainyard::checkpoint::testing

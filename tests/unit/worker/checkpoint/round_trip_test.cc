#include <array>
#include <filesystem>
#include <iterator>
#include <sys/resource.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/worker/checkpoint/job_directory.h"
#include "tests/unit/worker/checkpoint/memory_file_system.h"
#include "tests/unit/worker/checkpoint/small_state.h"
#include "worker/checkpoint/state_hash.h"
#include "worker/checkpoint/store.h"

namespace trainyard::checkpoint::testing {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

TEST(RoundTripTest, AnyNumberOfRanksReadsWhatAnyOtherWrote) {
  PosixFileSystem files;
  for (const int writers : {1, 2, 3, 5}) {
    JobDirectory job;
    const auto outcome = job.train(files, {.generation = 1, .ranks = writers, .steps = {10}});
    ASSERT_EQ(outcome, "") << writers;
    int64_t generation = 1;
    for (const int readers : {1, 2, 3, 4}) {
      ++generation;
      const Training next{.generation = generation, .parent = generation - 1, .ranks = readers};
      EXPECT_EQ(job.train(files, next), "") << writers << " -> " << readers;
      EXPECT_EQ(job.restored_step(), 10) << writers << " -> " << readers;
    }
  }
}

TEST(RoundTripTest, StateHashDoesNotDependOnTheNumberOfWriters) {
  PosixFileSystem files;
  std::string first;
  for (const int writers : {1, 2, 3, 5}) {
    JobDirectory job;
    ASSERT_EQ(job.train(files, {.generation = 1, .ranks = writers, .steps = {10}}), "");
    const auto reader = open_newest_good(files, job.root(), std::nullopt, Verify::kAll, nullptr);
    ASSERT_TRUE(reader.has_value()) << reader.error().message;
    const auto hash = state_hash_of(**reader);
    ASSERT_TRUE(hash.has_value()) << hash.error().message;
    if (first.empty()) first = to_hex(*hash);
    EXPECT_EQ(to_hex(*hash), first) << writers;
  }
}

TEST(RoundTripTest, StateHashEqualsTheOneOfMemory) {
  PosixFileSystem files;
  JobDirectory job;
  ASSERT_EQ(job.train(files, {.generation = 1, .ranks = 2, .steps = {10}}), "");
  StateHash memory;
  for (const WholeTensor& tensor : small_state(10))
    memory.add(tensor.name, tensor.kind, tensor.values);
  const auto reader = open_newest_good(files, job.root(), std::nullopt, Verify::kAll, nullptr);
  ASSERT_TRUE(reader.has_value()) << reader.error().message;
  EXPECT_EQ(to_hex(*state_hash_of(**reader)), to_hex(memory.finish(10, 0xfedcba9876543210, 640)));
}

TEST(RoundTripTest, BufferedAndDirectWritesLeaveTheSameBytes) {
  PosixFileSystem direct(DirectIo::kAuto);
  PosixFileSystem buffered(DirectIo::kOff);
  JobDirectory a;
  JobDirectory b;
  // Sizes around the block and buffer sizes, where the tail leaves the direct path.
  for (const size_t size : {0U, 1U, 4095U, 4096U, 4097U, 1048576U, 1048577U, 3145728U + 5U}) {
    std::vector<std::byte> data(size);
    for (size_t i = 0; i < size; ++i)
      data[i] = static_cast<std::byte>(i * 31 + i / 256);
    const std::string name = "file-" + std::to_string(size);
    for (auto* files : {&direct, &buffered}) {
      const auto path = (files == &direct ? a : b).root() / name;
      auto file = files->create(path);
      ASSERT_TRUE(file.has_value()) << file.error().message;
      // Uneven pieces.
      for (size_t at = 0; at < size; at += 100'003) {
        ASSERT_TRUE(
            (*file)->write(std::span(data).subspan(at, std::min<size_t>(100'003, size - at))));
      }
      ASSERT_TRUE((*file)->sync());
      const auto text = read_text(*files, path, 1 << 24);
      ASSERT_TRUE(text.has_value());
      EXPECT_TRUE(std::equal(text->begin(), text->end(), reinterpret_cast<const char*>(data.data()),
                             reinterpret_cast<const char*>(data.data()) + size))
          << size;
    }
  }
}

/// No more than `more` files may be opened beside those that are.
class FewFiles {
 public:
  explicit FewFiles(rlim_t more) {
    EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0);
    const auto open = std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                                    std::filesystem::directory_iterator());
    const rlimit few{static_cast<rlim_t>(open) + more, before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  }
  ~FewFiles() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  FewFiles(const FewFiles&) = delete;
  FewFiles& operator=(const FewFiles&) = delete;

 private:
  rlimit before_{};
};

/// A checkpoint of one tensor, of which each of `ranks` has written one of `ranks` rows.
class ManyShards {
 public:
  explicit ManyShards(int ranks) : ranks_(ranks) {
    for (int64_t i = 0; i < ranks * kColumns; ++i)
      values_.push_back(static_cast<float>(i));
    run_ranks(ranks, [&](CommitGroup& group) {
      const auto started = start_generation(files_, job_.plan(1, std::nullopt), group,
                                            [](CheckpointReader&) { return Status(); });
      if (!started) return;
      CheckpointWriter writer(borrowed(files_), group, {job_.root(), {}, 256}, *started);
      Snapshot snapshot;
      snapshot.step = 10;
      snapshot.slices.push_back({"rows",
                                 TensorKind::kParameter,
                                 DType::kFloat32,
                                 {ranks_, kColumns},
                                 {{group.rank(), 0}, {1, kColumns}},
                                 std::as_bytes(std::span(values_).subspan(
                                     static_cast<size_t>(group.rank()) * kColumns, kColumns))});
      if (writer.begin(snapshot)) (void)writer.wait(seconds(60));
    });
  }
  std::filesystem::path directory() const { return job_.root() / directory_name({1, 10}); }
  FileSystem& files() { return files_; }
  const std::vector<float>& values() const { return values_; }

  static Status read_row(CheckpointReader& reader, int64_t row, std::span<float> out) {
    return reader.read("rows", TensorKind::kParameter, {{row, 0}, {1, kColumns}},
                       std::as_writable_bytes(out));
  }
  static constexpr int64_t kColumns = 16;

 private:
  PosixFileSystem files_;
  JobDirectory job_;
  int64_t ranks_;
  std::vector<float> values_;
};

TEST(RoundTripTest, MoreShardsThanFilesMayBeOpenAreReadWhole) {
  ManyShards written(100);
  const FewFiles few(70);
  const auto reader = CheckpointReader::open(written.files(), written.directory(), Verify::kAll);
  ASSERT_TRUE(reader.has_value()) << reader.error().message;
  std::vector<float> found(written.values().size());
  const Status whole = (*reader)->read_all("rows", TensorKind::kParameter, found);
  ASSERT_TRUE(whole.has_value()) << whole.error().message;
  EXPECT_EQ(found, written.values());
  // From behind, too: each shard was closed and is opened again.
  std::array<float, ManyShards::kColumns> row{};
  for (int64_t i = 99; i >= 0; --i) {
    const Status again = ManyShards::read_row(**reader, i, row);
    ASSERT_TRUE(again.has_value()) << again.error().message;
    EXPECT_EQ(row[0], static_cast<float>(i * ManyShards::kColumns));
  }
}

TEST(RoundTripTest, ShardThatIsAnotherWhenItIsOpenedAgainIsDamage) {
  ManyShards written(100);
  const auto reader =
      CheckpointReader::open(written.files(), written.directory(), Verify::kManifest);
  ASSERT_TRUE(reader.has_value()) << reader.error().message;
  std::array<float, ManyShards::kColumns> row{};
  for (int64_t i = 0; i < 100; ++i)
    ASSERT_TRUE(ManyShards::read_row(**reader, i, row));
  const auto shard = [&](int64_t i) { return written.directory() / shard_file_name(i, 100); };
  std::filesystem::rename(shard(1), shard(0));
  std::filesystem::copy(shard(2), shard(1));
  spill(shard(3), slurp(shard(3)) + "more");
  EXPECT_THAT((*reader)->verify_chunk(0, 0).error().message, HasSubstr("shard-0-of-100"));
  EXPECT_THAT((*reader)->verify_chunk(1, 0).error().message,
              HasSubstr("shard-1-of-100.safetensors: chunk 0"));
  EXPECT_THAT(ManyShards::read_row(**reader, 3, row).error().message,
              HasSubstr("bytes, the manifest says"));
}

TEST(RoundTripTest, AnyRectangleOfAnyTensorIsAssembledFromSlices) {
  PosixFileSystem files;
  JobDirectory job;
  ASSERT_EQ(job.train(files, {.generation = 1, .ranks = 5, .steps = {10}}), "");
  const auto reader = open_newest_good(files, job.root(), std::nullopt, Verify::kManifest, nullptr);
  ASSERT_TRUE(reader.has_value()) << reader.error().message;
  const auto state = small_state(10);
  const WholeTensor& wte = state[9];
  ASSERT_EQ(wte.name, "wte");
  for (int64_t row = 0; row < 13; ++row) {
    for (int64_t rows = 1; rows <= 13 - row; ++rows) {
      for (int64_t column = 0; column < 3; ++column) {
        const Rectangle where{{row, 1, column}, {rows, 1, 3 - column}};
        std::vector<float> found(static_cast<size_t>(rows * (3 - column)));
        ASSERT_TRUE((*reader)->read("wte", TensorKind::kParameter, where,
                                    std::as_writable_bytes(std::span(found))));
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t c = 0; c < 3 - column; ++c) {
            ASSERT_EQ(found[static_cast<size_t>(r * (3 - column) + c)],
                      wte.values[static_cast<size_t>((row + r) * 6 + 3 + column + c)]);
          }
        }
      }
    }
  }
  std::vector<float> small(3);
  EXPECT_EQ((*reader)
                ->read("wte", TensorKind::kParameter, {{12, 0, 0}, {2, 1, 3}},
                       std::as_writable_bytes(std::span(small)))
                .error()
                .code,
            ErrorCode::kInvalidData);
  EXPECT_EQ((*reader)->read_all("wpe", TensorKind::kParameter, small).error().code,
            ErrorCode::kNotFound);
}

TEST(RoundTripTest, WhatAKilledGenerationLeftBesideLatestGoesWithTheNextMove) {
  PosixFileSystem files;
  JobDirectory job;
  ASSERT_TRUE(files.symlink("g1-step-0000000001", job.root() / "latest.tmp.g1"));
  ASSERT_TRUE(files.symlink("g3-step-0000000001", job.root() / "latest.tmp.g3"));
  ASSERT_TRUE(files.symlink("elsewhere", job.root() / "latest.tmp.gx"));
  ASSERT_EQ(point_latest(files, job.root(), {2, 15}), "");
  EXPECT_EQ(read_latest(files, job.root()), (CheckpointId{2, 15}));
  EXPECT_EQ(*files.list(job.root()),
            (std::vector<std::string>{"latest", "latest.tmp.g3", "latest.tmp.gx"}));
}

TEST(RoundTripTest, WriterReportsABusyPredecessorAndAStepTwice) {
  PosixFileSystem files;
  JobDirectory job;
  SoloCommitGroup group;
  const auto started = start_generation(files, job.plan(1, std::nullopt), group,
                                        [](CheckpointReader&) { return Status(); });
  ASSERT_TRUE(started.has_value()) << started.error().message;
  CheckpointWriter writer(borrowed(files), group, {job.root(), {}, 256}, *started);
  const auto state = small_state(1);
  ASSERT_TRUE(writer.begin(small_snapshot(state, 1, 0, 1)));
  EXPECT_EQ(writer.begin(small_snapshot(state, 2, 0, 1)).error().code, ErrorCode::kUnavailable);
  const auto outcome = writer.wait(seconds(60));
  ASSERT_TRUE(outcome.has_value());
  EXPECT_TRUE(outcome->status) << outcome->status.error().message;
  EXPECT_EQ(outcome->directory, "g1-step-0000000001");
  EXPECT_GT(outcome->bytes, 0);
  EXPECT_EQ(writer.begin(small_snapshot(state, 1, 0, 1)).error().code, ErrorCode::kAlreadyExists);
  EXPECT_FALSE(writer.poll().has_value());
}

/// Two nodes whose directories only have the same name.
TEST(RoundTripTest, AShardThatRankZeroDoesNotSeeIsNotCommitted) {
  const JobDirectory job("/job");
  MemoryFileSystem disks[2];
  std::string told;
  for (MemoryFileSystem& files : disks)
    ASSERT_TRUE(make_directories(files, job.root()));
  run_ranks(2, [&](CommitGroup& group) {
    MemoryFileSystem& files = disks[group.rank()];
    const auto started = start_generation(files, job.plan(1, std::nullopt), group,
                                          [](CheckpointReader&) -> Status { return {}; });
    ASSERT_TRUE(started) << started.error().message;
    CheckpointWriter writer(borrowed(files), group, {job.root(), {}, 256}, *started);
    const auto state = small_state(10);
    ASSERT_TRUE(writer.begin(small_snapshot(state, 10, group.rank(), group.size())));
    const auto outcome = writer.wait(std::chrono::seconds(60));
    ASSERT_TRUE(outcome);
    ASSERT_FALSE(outcome->status);
    if (group.rank() == 0) told = outcome->status.error().message;
  });
  EXPECT_THAT(told, HasSubstr("rank 1 has written shard-1-of-2.safetensors, rank 0 finds no such "
                              "file in /job/g1-step-0000000010: is that one directory shared by "
                              "all ranks?"));
  EXPECT_FALSE(disks[0].open(job.root() / "g1-step-0000000010/manifest.json"));
}

TEST(RoundTripTest, SliceThatContradictsItselfIsRefused) {
  PosixFileSystem files;
  JobDirectory job;
  SoloCommitGroup group;
  const auto started = start_generation(files, job.plan(1, std::nullopt), group,
                                        [](CheckpointReader&) { return Status(); });
  CheckpointWriter writer(borrowed(files), group, {job.root(), {}, 256}, *started);
  const auto state = small_state(1);
  Snapshot short_data = small_snapshot(state, 1, 0, 1);
  short_data.slices[0].data = short_data.slices[0].data.first(4);
  EXPECT_EQ(writer.begin(short_data).error().code, ErrorCode::kInternal);
  Snapshot outside = small_snapshot(state, 1, 0, 1);
  outside.slices[0].where.offset[0] = 1;
  EXPECT_EQ(writer.begin(outside).error().code, ErrorCode::kInternal);
}

TEST(RoundTripTest, RanksThatLeaveAHoleAbandonTheCheckpointWithAReason) {
  PosixFileSystem files;
  JobDirectory job;
  SoloCommitGroup group;
  const auto started = start_generation(files, job.plan(1, std::nullopt), group,
                                        [](CheckpointReader&) { return Status(); });
  CheckpointWriter writer(borrowed(files), group, {job.root(), {}, 256}, *started);
  const auto state = small_state(1);
  ASSERT_TRUE(writer.begin(small_snapshot(state, 1, 0, 2)));  // half of the state
  const auto outcome = writer.wait(seconds(60));
  ASSERT_TRUE(outcome.has_value());
  ASSERT_FALSE(outcome->status.has_value());
  EXPECT_EQ(outcome->status.error().code, ErrorCode::kInternal);
  EXPECT_EQ(open_newest_good(files, job.root(), std::nullopt, Verify::kAll, nullptr).error().code,
            ErrorCode::kNotFound);
}

}  // namespace
}  // namespace trainyard::checkpoint::testing

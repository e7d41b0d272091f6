#include "worker/checkpoint/shard.h"

#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "tests/unit/worker/checkpoint/hooked_file_system.h"
#include "tests/unit/worker/checkpoint/memory_file_system.h"
#include "worker/checkpoint/file_hasher.h"

namespace trainyard::checkpoint::testing {
namespace {

constexpr int64_t kChunkBytes = 1 << 20;
constexpr char kDirectory[] = "/g1-step-1";

/// A disk faster than any hash: what is written is gone at once.
class FastDisk final : public HookedFileSystem {
 public:
  explicit FastDisk(std::shared_ptr<FileSystem> names)
      : HookedFileSystem(std::move(names), [](auto, const auto&) { return Status(); }) {}

  Result<std::unique_ptr<OutputFile>> create(const std::filesystem::path& path) override {
    TRAINYARD_TRY(HookedFileSystem::create(path));
    return std::unique_ptr<OutputFile>(std::make_unique<Sink>());
  }

 private:
  struct Sink final : OutputFile {
    Status write(std::span<const std::byte>) override { return {}; }
    Status sync() override { return {}; }
  };
};

/// Large enough to be hashed beside the write, and for the write to wait for the hashing.
struct LargeState {
  std::vector<float> values = std::vector<float>(20 << 20);
  LargeState() {
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(i % 8191);
  }
  std::vector<TensorSlice> slices() const {
    const auto count = static_cast<int64_t>(values.size());
    return {{.name = "weight",
             .global_shape = {count},
             .where = {{0}, {count}},
             .data = std::as_bytes(std::span(values))}};
  }
};

TEST(ShardTest, ALargeShardIsHashedWholeHoweverFastItIsWritten) {
  const LargeState state;
  const auto memory = std::make_shared<MemoryFileSystem>();
  ASSERT_TRUE(memory->make_directory(kDirectory));
  const auto kept = write_shard(*memory, kDirectory, 0, 1, state.slices(), kChunkBytes);
  ASSERT_TRUE(kept.has_value()) << kept.error().message;
  const std::string& content =
      memory->content(std::filesystem::path(kDirectory) / shard_file_name(0, 1));
  FileHasher hasher(kChunkBytes);
  hasher.update(std::as_bytes(std::span(content.data(), content.size())));
  const ShardRecord wanted = hasher.finish();
  EXPECT_EQ(kept->shard, wanted);

  const auto names = std::make_shared<MemoryFileSystem>();
  ASSERT_TRUE(names->make_directory(kDirectory));
  FastDisk disk(names);
  const auto gone = write_shard(disk, kDirectory, 0, 1, state.slices(), kChunkBytes);
  ASSERT_TRUE(gone.has_value()) << gone.error().message;
  EXPECT_EQ(gone->shard, wanted);
}

TEST(ShardTest, ALargeShardThatCannotBeWrittenIsAnErrorAndItsHashingEnds) {
  const LargeState state;
  const auto names = std::make_shared<MemoryFileSystem>();
  ASSERT_TRUE(names->make_directory(kDirectory));
  HookedFileSystem full(names, [](std::string_view what, const auto& path) -> Status {
    if (what == "write") return Error{ErrorCode::kIo, path.string() + ": no space"};
    return {};
  });
  const auto written = write_shard(full, kDirectory, 0, 1, state.slices(), kChunkBytes);
  ASSERT_FALSE(written.has_value());
  EXPECT_EQ(written.error().code, ErrorCode::kIo);
  EXPECT_TRUE(names->list(kDirectory)->empty()) << "the temporary is removed";
}

}  // namespace
}  // namespace trainyard::checkpoint::testing

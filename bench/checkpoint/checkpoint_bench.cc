// What a checkpoint costs: the copy a step waits for, hashing, and the whole save past the page
// cache (O_DIRECT) and through it, interleaved.
//   checkpoint_bench [--dir DIR] [--bytes N] [--repetitions N]
// Default: the state of GPT-2 124M (12 bytes a parameter, 1.49 GB), 5 times, in the temporary
// directory; needs twice that much memory and three times on disk. GB are 10^9 bytes. Medians.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <string>
#include <unistd.h>
#include <vector>

#include "common/hash/hash.h"
#include "worker/checkpoint/generation.h"
#include "worker/checkpoint/writer.h"
#include "worker/device/memory_source.h"
#include "worker/device/parallel_copy.h"

namespace trainyard::checkpoint {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kParameters = 124'439'808;  // GPT-2 small
constexpr int64_t kBytesPerParameter = 12;    // master weight and two moments
constexpr int64_t kRowBytes = 768 * 4;
constexpr std::chrono::minutes kPatience{10};

struct Options {
  std::filesystem::path dir = std::filesystem::temp_directory_path();
  int64_t bytes = kParameters * kBytesPerParameter;
  int repetitions = 5;
};

double processor_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

struct Cost {
  double seconds = 0;
  double processor_seconds = 0;
};

template <class Body>
Cost cost_of(const Body& body) {
  const auto begin = Clock::now();
  const double processor_begin = processor_seconds();
  body();
  return {std::chrono::duration<double>(Clock::now() - begin).count(),
          processor_seconds() - processor_begin};
}

Cost median(std::vector<Cost> costs) {
  const auto middle = static_cast<std::ptrdiff_t>(costs.size() / 2);
  const auto pick = [&](double Cost::*part) {
    std::nth_element(costs.begin(), costs.begin() + middle, costs.end(),
                     [part](const Cost& a, const Cost& b) { return a.*part < b.*part; });
    return costs[static_cast<size_t>(middle)].*part;
  };
  return {pick(&Cost::seconds), pick(&Cost::processor_seconds)};
}

void print(const char* what, const std::vector<Cost>& costs, int64_t bytes) {
  const Cost cost = median(costs);
  std::printf("%-44s %8.3f s %8.2f GB/s %8.3f processor s\n", what, cost.seconds,
              static_cast<double>(bytes) / cost.seconds / 1e9, cost.processor_seconds);
}

[[noreturn]] void fail(const std::string& message) {
  std::fprintf(stderr, "checkpoint_bench: %s\n", message.c_str());
  std::exit(75);
}

/// One save of the whole state by one rank, manifest and clean-up included.
void save(const Options& options, DirectIo direct, std::span<const std::byte> state,
          int64_t generation) {
  const std::filesystem::path root = options.dir / "state";
  const auto files = std::make_shared<PosixFileSystem>(direct);
  SoloCommitGroup group;
  const auto started =
      start_generation(*files, {root, "checkpoint_bench", generation, std::nullopt}, group,
                       [](CheckpointReader&) { return Status(); });
  if (!started) fail(started.error().message);
  CheckpointWriter writer(files, group, {.root = root}, *started);
  const int64_t rows = static_cast<int64_t>(state.size()) / kRowBytes;
  Snapshot snapshot{.step = 1};
  snapshot.slices.push_back({"w",
                             TensorKind::kParameter,
                             DType::kFloat32,
                             {rows, kRowBytes / 4},
                             {{0, 0}, {rows, kRowBytes / 4}},
                             state});
  const Status begun = writer.begin(std::move(snapshot));
  if (!begun) fail(begun.error().message);
  const auto outcome = writer.wait(kPatience);
  if (!outcome) fail("no outcome within ten minutes");
  if (!outcome->status) fail(outcome->status.error().message);
}

int run(const Options& given) {
  Options options = given;
  options.bytes = options.bytes / kRowBytes * kRowBytes;
  options.dir /= "checkpoint_bench-" + std::to_string(::getpid());
  std::filesystem::create_directories(options.dir);
  engine::HeapMemorySource memory;
  auto live = memory.allocate(options.bytes);
  auto copy = memory.allocate(options.bytes);
  if (!live || !copy) fail("no memory");
  const std::span<std::byte> from = (*live)->bytes();
  const std::span<std::byte> to = (*copy)->bytes();
  for (size_t i = 0; i + 8 <= from.size(); i += 8) {
    const uint64_t value = i * 0x9e3779b97f4a7c15;
    std::memcpy(from.data() + i, &value, sizeof value);
  }
  std::printf("state %.3f GB in %s\n", static_cast<double>(options.bytes) / 1e9,
              options.dir.c_str());
  const engine::CopyRange all{to.data(), from.data(), to.size()};
  const auto copy_all = [&](int threads) { engine::parallel_copy(std::span(&all, 1), threads); };
  const Cost first = cost_of([&] { copy_all(2); });
  std::printf("%-44s %8.3f s\n", "first snapshot (memory is touched), 2 threads", first.seconds);

  std::vector<Cost> copy_one;
  std::vector<Cost> copy_two;
  std::vector<Cost> xxh3;
  std::vector<Cost> sha;
  std::vector<Cost> direct;
  std::vector<Cost> buffered;
  int64_t generation = 0;
  for (int i = 0; i < options.repetitions; ++i) {
    copy_one.push_back(cost_of([&] { copy_all(1); }));
    copy_two.push_back(cost_of([&] { copy_all(2); }));
    xxh3.push_back(cost_of([&] { (void)xxh3_128(to); }));
    sha.push_back(cost_of([&] {
      Sha256Stream stream;
      stream.update(to);
      (void)stream.digest();
    }));
    direct.push_back(cost_of([&] { save(options, DirectIo::kAuto, to, ++generation); }));
    std::filesystem::remove_all(options.dir / "state");
    buffered.push_back(cost_of([&] { save(options, DirectIo::kOff, to, ++generation); }));
    std::filesystem::remove_all(options.dir / "state");
  }
  print("snapshot, 1 thread", copy_one, options.bytes);
  print("snapshot, 2 threads", copy_two, options.bytes);
  print("XXH3-128, 1 thread", xxh3, options.bytes);
  print("SHA-256, 1 thread", sha, options.bytes);
  print("save past the page cache", direct, options.bytes);
  print("save through the page cache", buffered, options.bytes);
  std::filesystem::remove_all(options.dir);
  return 0;
}

}  // namespace
}  // namespace trainyard::checkpoint

int main(int argc, char** argv) {
  trainyard::checkpoint::Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    if (name == "--dir") options.dir = argv[i + 1];
    if (name == "--bytes") options.bytes = std::stoll(argv[i + 1]);
    if (name == "--repetitions") options.repetitions = std::stoi(argv[i + 1]);
  }
  return trainyard::checkpoint::run(options);
}

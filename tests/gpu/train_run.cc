// What trainyard-worker does, with its ranks as threads that share one GPU: each trains by the same
// engine configuration as the worker reads, from the same tokens, to the same state.
//
//   gpu_train --write-tokens DIR --vocab N --count N
//   gpu_train --config FILE [--ranks N]
//
// The first form writes pseudo-random tokens. The second prints one line of JSON. Ranks exchange
// through host memory, or by NCCL where the configuration's runtime.transport is Nccl: several
// ranks on one GPU need NCCL 2.30 with NCCL_MULTI_RANK_GPU_ENABLE=1.

#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/api/decode.h"
#include "common/base/clock.h"
#include "common/io/file.h"
#include "common/log/log.h"
#include "tests/gpu/library.h"
#include "worker/comm/factory.h"
#include "worker/comm/nccl_transport.h"
#include "worker/data/token_writer.h"
#include "worker/matrix/world.h"
#include "worker/rank/train_loop.h"
#if !defined(TRAINYARD_DEVICE_BUILD)
#include "tests/support/fake_nccl.h"
#endif

namespace trainyard::engine {
namespace {

constexpr int64_t kConfigBytesMax = 1 << 20;
constexpr int64_t kRanksMax = 64;

int failed(const std::string& what) {
  std::fprintf(stderr, "gpu_train: %s\n", what.c_str());
  return 1;
}

/// A GPU of any number is the one that there is.
Result<CudaFacts> find(int /*index*/) { return find_cuda_device(0); }
Result<std::unique_ptr<Device>> make(const CudaDeviceOptions& asked) {
  TRAINYARD_ASSIGN(const auto library, kernels::cuda::product_library());
  CudaDeviceOptions options = asked;
  options.index = 0;
  options.cublaslt = &library;
  return make_cuda_device(options);
}
Result<std::unique_ptr<comm::DeviceTransport>> nccl(Device& device, comm::Communicator& world,
                                                    const comm::NcclOptions& asked) {
  comm::NcclOptions options = asked;
#if !defined(TRAINYARD_DEVICE_BUILD)
  const comm::nccl::Api api = testing_support::fake_nccl_api(world.rank());
  options.api = &api;
#endif
  return comm::make_nccl_transport(device, world, options);
}

Status write_tokens(const std::string& folder, int64_t vocab, int64_t count) {
  TRAINYARD_ASSIGN(auto writer,
                   data::TokenWriter::create(
                       folder, {.token_bytes = 4, .vocabulary = vocab, .tokenizer = "none"}));
  TRAINYARD_TRY(writer.append(matrix::make_token_stream(count, vocab, 99)));
  const auto shards = writer.finish();
  if (!shards) return shards.error();
  return {};
}

/// One rank's run, from its meeting with the others to its end.
Result<TrainOutcome> train_rank(const api::EngineSpec& spec, int rank, int ranks,
                                const std::shared_ptr<comm::LocalWorld>& local) {
  comm::Options options{.rank = rank, .generation = 1, .job_uid = "gpu-check"};
  for (int other = 0; other < ranks; ++other)
    options.endpoints.push_back({.rank = other, .host_id = "here"});
  TRAINYARD_ASSIGN(const auto world, comm::make_local_communicator(options, local));
  TRAINYARD_ASSIGN(const layout::Mesh mesh, layout::mesh_of(spec.parallelism, ranks));
  TRAINYARD_ASSIGN(comm::Groups groups, comm::Groups::make(*world, mesh));
  TRAINYARD_ASSIGN(Progress progress, Progress::map(-1));
  const auto log = Logger::to_stderr(LogLevel::kInfo, LogFormat::kText);
  const SystemClock clock;
  const CudaSupport cuda = {find, make, nccl};
  TrainContext context{.spec = spec, .job_uid = "gpu-check", .resume = {1, std::nullopt}};
  context.cuda = &cuda;
  context.local_rank = rank;
  context.local_world_size = ranks;
  context.groups = &groups;
  context.progress = &progress;
  context.log = log.get();
  context.clock = &clock;
  context.stop_requested = [] { return false; };
  return train(context);
}

int run(const std::string& config, int ranks) {
  const auto text = read_file(config, kConfigBytesMax);
  if (!text) return failed(text.error().message);
  const auto spec = api::decode_engine(*text, {.file = config});
  if (!spec) return failed(spec.error().message);
  const auto local = std::make_shared<comm::LocalWorld>();
  std::vector<std::optional<Result<TrainOutcome>>> outcomes(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  threads.reserve(outcomes.size());
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back(
        [&, rank] { outcomes[static_cast<size_t>(rank)] = train_rank(*spec, rank, ranks, local); });
  }
  for (std::thread& thread : threads)
    thread.join();
  for (int rank = 0; rank < ranks; ++rank) {
    const Result<TrainOutcome>& outcome = *outcomes[static_cast<size_t>(rank)];
    if (!outcome) return failed("rank " + std::to_string(rank) + ": " + outcome.error().message);
  }
  const contract::RunResult& result = (*outcomes[0])->result;
  std::printf("{\"ranks\": %d, \"step\": %lld, \"state_hash\": \"%s\", \"loss\": %.9g}\n", ranks,
              static_cast<long long>(result.step), result.state_hash.c_str(), result.final_loss);
  return 0;
}

int main_of(int count, char** arguments) {
  std::map<std::string, std::string> given = {{"--write-tokens", ""},
                                              {"--vocab", "0"},
                                              {"--count", "0"},
                                              {"--config", ""},
                                              {"--ranks", "1"}};
  const auto number = [&](const char* name) {
    return std::strtoll(given.at(name).c_str(), nullptr, 10);
  };
  bool is_known = count % 2 == 1;
  for (int i = 1; i + 1 < count && is_known; i += 2) {
    const auto found = given.find(arguments[i]);
    is_known = found != given.end();
    if (is_known) found->second = arguments[i + 1];
  }
  const int64_t ranks = number("--ranks");
  if (is_known && !given["--write-tokens"].empty() && number("--vocab") > 0 &&
      number("--count") > 0) {
    const Status written =
        write_tokens(given["--write-tokens"], number("--vocab"), number("--count"));
    return written ? 0 : failed(written.error().message);
  }
  if (is_known && !given["--config"].empty() && ranks > 0 && ranks <= kRanksMax)
    return run(given["--config"], static_cast<int>(ranks));
  std::fprintf(stderr, "gpu_train: unknown or incomplete option; see tests/gpu/train_run.cc\n");
  return 64;
}

}  // namespace
}  // namespace trainyard::engine

int main(int argc, char** argv) { return trainyard::engine::main_of(argc, argv); }

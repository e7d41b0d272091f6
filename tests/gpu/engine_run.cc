// The engine itself on one GPU: trains from fresh weights with ranks as threads, each with a device
// of its own that shares the GPU, and prints one line of JSON.
//
//   gpu_engine [--family gpt2|llama|qwen3] [--layers N] [--width N] [--heads N] [--kv-heads N]
//              [--ffn N] [--vocab N] [--sequence N] [--global N] [--micro N] [--grain N]
//              [--ranks N] [--zero N] [--pipeline N] [--steps N] [--fp32] [--fast] [--no-hash]
//              [--checkpoints DIR [--save-after STEP] [--until-killed]] [--export FILE]
//
// --checkpoints resumes from the newest checkpoint in DIR and prints a line of JSON after each
// step.
// --save-after writes a checkpoint of that step. --until-killed trains past the last step, and
// never ends. --export writes initial weights and the token stream as safetensors, of one rank
// only. --fast trains with Fast numerics, which have no grains.
//
// Batches are of random tokens that are the same for all layouts. In canonical numerics every
// layout of one --grain ends in one state, whose hash is printed.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "common/io/control_group.h"
#include "kernels/simt/runtime.h"
#include "tests/gpu/library.h"
#include "worker/checkpoint/communicator_group.h"
#include "worker/checkpoint/file_system.h"
#include "worker/checkpoint/generation.h"
#include "worker/checkpoint/store.h"
#include "worker/checkpoint/writer.h"
#include "worker/comm/factory.h"
#include "worker/comm/staged_communicator.h"
#include "worker/device/cuda_device.h"
#include "worker/device/cuda_plan.h"
#include "worker/device/device_choice.h"
#include "worker/engine/engine.h"
#include "worker/engine/limits.h"
#include "worker/job/engine_state.h"
#include "worker/job/job_plan.h"
#include "worker/matrix/world.h"
#include "worker/state/units.h"

namespace trainyard::engine {
namespace {

struct Options {
  std::map<std::string, int64_t> numbers = {
      {"--layers", 2}, {"--width", 128},   {"--heads", 2},  {"--kv-heads", 0}, {"--ffn", 0},
      {"--vocab", 67}, {"--sequence", 13}, {"--global", 8}, {"--micro", 2},    {"--grain", 0},
      {"--ranks", 1},  {"--zero", 1},      {"--steps", 3},  {"--pipeline", 1}, {"--save-after", 0}};
  std::map<std::string, std::string> texts = {
      {"--family", "gpt2"}, {"--checkpoints", ""}, {"--export", ""}};
  std::map<std::string, bool> flags = {
      {"--fp32", false}, {"--fast", false}, {"--no-hash", false}, {"--until-killed", false}};

  int64_t operator[](const char* name) const { return numbers.at(name); }
};

int failed(const std::string& what) {
  std::fprintf(stderr, "gpu_engine: %s\n", what.c_str());
  return 1;
}

bool parse(int count, char** arguments, Options& options) {
  for (int i = 1; i < count; ++i) {
    const std::string name = arguments[i];
    if (const auto flag = options.flags.find(name); flag != options.flags.end()) {
      flag->second = true;
      continue;
    }
    if (i + 1 == count) return false;
    const char* const value = arguments[++i];
    if (const auto text = options.texts.find(name); text != options.texts.end()) {
      text->second = value;
      continue;
    }
    char* end = nullptr;
    const auto found = options.numbers.find(name);
    if (found == options.numbers.end()) return false;
    found->second = std::strtoll(value, &end, 10);
    if (*value == '\0' || *end != '\0') return false;
  }
  const std::string& family = options.texts.at("--family");
  const bool saves = options["--save-after"] > 0 || options.flags.at("--until-killed");
  return (family == "gpt2" || family == "llama" || family == "qwen3") &&
         (!options.flags.at("--fast") || options["--grain"] == 0) &&
         (!saves || !options.texts.at("--checkpoints").empty()) &&
         (options["--ranks"] == 1 || options.texts.at("--export").empty());
}

api::EngineSpec spec_of(const Options& options) {
  const std::string& name = options.texts.at("--family");
  const bool is_gpt2 = name == "gpt2";
  const auto family = is_gpt2           ? api::ModelFamily::kGPT2
                      : name == "llama" ? api::ModelFamily::kLlama
                                        : api::ModelFamily::kQwen3;
  api::EngineSpec spec = matrix::prime_spec(
      options.flags.at("--fp32") ? api::NumberFormat::kFP32 : api::NumberFormat::kBF16, family);
  api::ModelSpec& model = spec.model;
  model.layers = options["--layers"];
  model.hidden = options["--width"];
  model.heads = options["--heads"];
  model.kv_heads = options["--kv-heads"] > 0 ? options["--kv-heads"] : model.heads;
  model.head_dim = is_gpt2 ? 0 : model.hidden / model.heads;
  model.ffn = options["--ffn"] > 0 ? options["--ffn"] : 4 * model.hidden;
  model.vocab = options["--vocab"];
  model.max_positions = options["--sequence"];
  model.dropout = 0;
  spec.data.tokens = {"pseudo-random"};  // checkpoints of a run without data are refused
  spec.data.sequence_length = options["--sequence"];
  spec.batch = {.global_sequences = options["--global"], .micro_sequences = options["--micro"]};
  spec.steps = options["--steps"];
  spec.optimizer.learning_rate = 6e-4;
  spec.device = api::DeviceKind::kCuda;
  if (options.flags.at("--fast")) {
    spec.numerics = {.mode = api::NumericsMode::kFast};
  } else {
    spec.numerics.grain_sequences =
        options["--grain"] > 0 ? options["--grain"] : options["--micro"];
  }
  spec.parallelism.zero_stage = options["--zero"];
  spec.parallelism.pipeline = options["--pipeline"];
  return spec;
}

int64_t free_bytes() {
  size_t free = 0;
  size_t total = 0;
  return cudaMemGetInfo(&free, &total) == cudaSuccess ? static_cast<int64_t>(free) : 0;
}

/// What a rank found.
struct Found {
  Status status;
  std::string hash;
  std::vector<double> losses;
  std::vector<double> learning_rates;
  std::vector<double> seconds;  ///< of each step, until the device has done it
  int64_t resumed_from = -1;    ///< step of the checkpoint; -1: none was found
  int64_t free_bytes = 0;       ///< of the GPU, while every rank has what it needs
};

/// Initial weights of a lone rank and the token stream, as safetensors. Errors: kIo; those of the
/// device.
Status export_start(EngineState& state, const std::vector<int32_t>& stream,
                    const std::string& path) {
  const Engine& engine = state.engine();
  std::string header;
  int64_t offset = 0;
  const auto describe = [&](const std::string& name, const char* type,
                            std::span<const int64_t> shape) {
    int64_t elements = 1;
    std::string sizes;
    for (const int64_t size : shape) {
      elements *= size;
      sizes += (sizes.empty() ? "" : ",") + std::to_string(size);
    }
    const int64_t end = offset + elements * 4;
    header += (header.empty() ? "{\"" : ",\"") + name + R"(":{"dtype":")" + type +
              R"(","shape":[)" + sizes + R"(],"data_offsets":[)" + std::to_string(offset) + "," +
              std::to_string(end) + "]}";
    offset = end;
  };
  for (const int param : engine.name_order()) {
    const ParamSpec& spec = engine.model().params[static_cast<size_t>(param)];
    describe(spec.name(), "F32", spec.tensor.shape);
  }
  describe("stream", "I32", std::vector<int64_t>{static_cast<int64_t>(stream.size())});
  header += "}";
  std::ofstream file(path, std::ios::binary);
  const auto write = [&](const void* data, size_t bytes) {
    file.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
  };
  const uint64_t header_bytes = header.size();
  write(&header_bytes, sizeof header_bytes);
  write(header.data(), header.size());
  for (const int param : engine.name_order()) {
    TRAINYARD_TRY(state.gather_pieces(
        param, checkpoint::TensorKind::kParameter,
        [&](std::span<const float> piece) { write(piece.data(), piece.size_bytes()); }));
  }
  write(stream.data(), stream.size() * sizeof(int32_t));
  file.close();
  if (!file) return Error{ErrorCode::kIo, path + ": could not be written"};
  return {};
}

class Run {
 public:
  Run(const api::EngineSpec& spec, const Options& asked)
      : spec_(spec),
        asked_(asked),
        mesh_(*layout::mesh_of(spec.parallelism, static_cast<int>(asked["--ranks"]))),
        stream_(matrix::make_token_stream(
            (spec.batch.global_sequences * spec.steps + 8) * spec.data.sequence_length + 1,
            spec.model.vocab, 99)) {}

  /// Whether attention was computed by own kernels where Fast numerics prefer a library.
  bool lacks_attention() const { return lacks_attention_; }

  /// All ranks, each on a thread of its own.
  Result<std::vector<Found>> train(const kernels::cuda::cublaslt::Api& library) {
    if (!folder().empty()) {
      TRAINYARD_ASSIGN(const auto lineage, checkpoint::load_lineage(*files_, folder()));
      if (!lineage.recorded.empty()) parent_ = *lineage.recorded.rbegin();
    }
    std::vector<Found> found(static_cast<size_t>(mesh_.size()));
    std::vector<std::thread> threads;
    threads.reserve(found.size());
    const auto local = std::make_shared<comm::LocalWorld>();
    for (int rank = 0; rank < mesh_.size(); ++rank) {
      threads.emplace_back([&, rank] {
        Found& of_rank = found[static_cast<size_t>(rank)];
        of_rank.status = train_rank(rank, local, library, of_rank);
      });
    }
    for (std::thread& thread : threads)
      thread.join();
    return found;
  }

 private:
  Status train_rank(int rank, const std::shared_ptr<comm::LocalWorld>& local,
                    const kernels::cuda::cublaslt::Api& library, Found& found) {
    comm::Options options;
    options.generation = 1;
    options.job_uid = "gpu-check";
    for (int other = 0; other < mesh_.size(); ++other)
      options.endpoints.push_back({.rank = other, .host_id = "here"});
    options.rank = rank;
    TRAINYARD_ASSIGN(const auto world, comm::make_local_communicator(options, local));
    TRAINYARD_ASSIGN(const auto host, comm::Groups::make(*world, mesh_));
    TRAINYARD_ASSIGN(const KernelShapes shapes, kernel_shapes(spec_));
    TRAINYARD_ASSIGN(const auto device, make_cuda_device({.host_threads = host_threads(),
                                                          .shapes = shapes,
                                                          .cublaslt = &library,
                                                          .log = [this](const std::string& line) {
                                                            lacks_attention_ = true;
                                                            (void)failed(line);
                                                          }}));
    TRAINYARD_ASSIGN(const auto groups,
                     host.on_device([&](comm::Communicator& group, comm::GroupUse) {
                       return comm::StagedCommunicator::make(group, *device);
                     }));
    TRAINYARD_ASSIGN(
        const auto engine,
        Engine::create(
            {.spec = spec_, .device = device.get(), .groups = mesh_.size() > 1 ? &groups : &host}));
    Status status = steps(*engine, found);
    if (!status) groups.abort(status.error());
    return status;
  }

  /// As a worker's: the ranks share this machine's processors.
  int host_threads() const { return std::max(1, usable_cpus() / mesh_.size()); }

  const std::string& folder() const { return asked_.texts.at("--checkpoints"); }

  /// Restores the newest checkpoint in folder(). Errors: those of checkpoint::start_generation.
  Result<std::unique_ptr<checkpoint::CheckpointWriter>> resume(EngineState& state,
                                                               checkpoint::CommitGroup& group,
                                                               Found& found) {
    TRAINYARD_ASSIGN(auto started,
                     checkpoint::start_generation(*files_,
                                                  {.root = folder(),
                                                   .job_uid = "gpu-check",
                                                   .generation = parent_.value_or(0) + 1,
                                                   .parent_generation = parent_},
                                                  group, [&](checkpoint::CheckpointReader& reader) {
                                                    return state.restore(reader);
                                                  }));
    if (started.resumed_from) found.resumed_from = started.resumed_from->id.step;
    state.set_generation(started.record);
    return std::make_unique<checkpoint::CheckpointWriter>(
        files_, group, checkpoint::WriterOptions{.root = folder()}, std::move(started));
  }

  static Status save(EngineState& state, checkpoint::CheckpointWriter& writer) {
    TRAINYARD_ASSIGN(checkpoint::Snapshot snapshot, state.snapshot());
    TRAINYARD_TRY(writer.begin(std::move(snapshot)));
    const auto outcome = writer.wait(std::chrono::minutes(1));
    if (!outcome) return Error{ErrorCode::kDeadline, "the checkpoint took more than a minute"};
    return outcome->status;
  }

  Status steps(Engine& engine, Found& found) {
    const comm::Groups& groups = engine.groups();
    EngineState state(engine);
    checkpoint::CommunicatorCommitGroup group(*groups.world);
    std::unique_ptr<checkpoint::CheckpointWriter> writer;
    TRAINYARD_TRY(engine.initialize());
    if (!folder().empty()) {
      TRAINYARD_ASSIGN(writer, resume(state, group, found));
    }
    if (const std::string& path = asked_.texts.at("--export"); !path.empty())
      TRAINYARD_TRY(export_start(state, stream_, path));
    matrix::StreamBatches batches(stream_, spec_, groups.data_ranks(), groups.data_rank());
    batches.start_step(engine.steps_done());
    while (engine.steps_done() < spec_.steps || asked_.flags.at("--until-killed")) {
      const auto begin = std::chrono::steady_clock::now();
      TRAINYARD_ASSIGN(const StepReport report, engine.step(batches));
      TRAINYARD_TRY(engine.device().wait());
      found.seconds.push_back(
          std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
      found.losses.push_back(report.loss);
      found.learning_rates.push_back(report.learning_rate);
      if (!writer) continue;
      if (engine.steps_done() == asked_["--save-after"]) TRAINYARD_TRY(save(state, *writer));
      if (groups.world->rank() == 0) {
        std::printf("{\"done\": %lld}\n", static_cast<long long>(engine.steps_done()));
        std::fflush(stdout);
      }
    }
    if (!asked_.flags.at("--no-hash")) {
      TRAINYARD_ASSIGN(const Hash128 hash, state.hash());
      found.hash = to_hex(hash);
    }
    found.free_bytes = free_bytes();
    return {};
  }

  const api::EngineSpec spec_;
  const Options asked_;
  const layout::Mesh mesh_;
  const std::vector<int32_t> stream_;
  const std::shared_ptr<checkpoint::FileSystem> files_ =
      std::make_shared<checkpoint::PosixFileSystem>();
  std::optional<int64_t> parent_;  ///< the newest generation in folder()
  std::atomic<bool> lacks_attention_ = false;
};

void print_numbers(const char* name, const std::vector<double>& numbers) {
  std::printf(", \"%s\": [", name);
  for (size_t i = 0; i < numbers.size(); ++i)
    std::printf("%s%.9g", i == 0 ? "" : ", ", numbers[i]);
  std::printf("]");
}

int run(const Options& options) {
  const api::EngineSpec spec = spec_of(options);
  const auto library = kernels::cuda::product_library();
  if (!library) return failed(library.error().message);
  if (const Status fits = check_kernel_limits(spec, cuda_limits()); !fits)
    return failed(fits.error().message);
  const int ranks = static_cast<int>(options["--ranks"]);
  const auto mesh = layout::mesh_of(spec.parallelism, ranks);
  if (!mesh) return failed(mesh.error().message);
  if (const Status fits = check_batch(spec, mesh->data_ranks()); !fits)
    return failed(fits.error().message);
  const auto plan = MemoryPlan::make(
      {.spec = spec,
       .mesh = *mesh,
       .formats = formats_of(spec.device, compute_type(spec.precision), sum_type(spec.numerics))});
  if (!plan) return failed(plan.error().message);
  const int64_t free_before = free_bytes();
  int64_t planned = 0;
  for (int rank = 0; rank < ranks; ++rank)
    planned += plan->gpu_bytes(rank);
  if (free_before > 0 && planned > free_before) {
    return failed("needs " + std::to_string(planned) + " bytes of GPU memory, and " +
                  std::to_string(free_before) + " are free");
  }
  Run run(spec, options);
  const auto trained = run.train(*library);
  if (!trained) return failed(trained.error().message);
  const std::vector<Found>& found = *trained;
  for (size_t rank = 0; rank < found.size(); ++rank) {
    if (!found[rank].status)
      return failed("rank " + std::to_string(rank) + ": " + found[rank].status.error().message);
    if (found[rank].hash != found[0].hash)
      return failed("rank " + std::to_string(rank) + " ends in another state");
  }
  if (found[0].seconds.empty()) return failed("the checkpoint is of the last step: nothing to do");
  // The first two steps plan products and load modules.
  const auto steps = static_cast<int64_t>(found[0].seconds.size());
  std::vector<double> seconds(found[0].seconds.begin() + std::min<int64_t>(2, steps - 1),
                              found[0].seconds.end());
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  const auto tokens = static_cast<double>(spec.batch.global_sequences * spec.data.sequence_length);
  std::printf("{\"ranks\": %d, \"hash\": \"%s\", \"tokens_s\": %.0f, \"step_ms\": %.3f", ranks,
              found[0].hash.c_str(), tokens / median, median * 1000);
  int64_t least_free = free_before;
  for (const Found& of_rank : found)
    least_free = std::min(least_free, of_rank.free_bytes);
  std::printf(", \"planned_gpu_bytes\": %lld, \"taken_gpu_bytes\": %lld",
              static_cast<long long>(planned), static_cast<long long>(free_before - least_free));
  const api::OptimizerSpec& optimizer = spec.optimizer;
  std::printf(", \"resumed_from\": %lld", static_cast<long long>(found[0].resumed_from));
  std::printf(", \"betas\": [%.9g, %.9g], \"epsilon\": %.9g, \"decay\": %.9g, \"clip\": %.9g",
              optimizer.betas[0], optimizer.betas[1], optimizer.epsilon, optimizer.weight_decay,
              optimizer.gradient_clip);
  std::printf(", \"own_attention\": %s", run.lacks_attention() ? "true" : "false");
  print_numbers("learning_rates", found[0].learning_rates);
  print_numbers("losses", found[0].losses);
  print_numbers("seconds", found[0].seconds);
  std::printf("}\n");
  return 0;
}

}  // namespace
}  // namespace trainyard::engine

int main(int argc, char** argv) {
  trainyard::engine::Options options;
  if (!trainyard::engine::parse(argc, argv, options)) {
    std::fprintf(stderr, "gpu_engine: unknown or incomplete option; see tests/gpu/engine_run.cc\n");
    return 64;
  }
  return trainyard::engine::run(options);
}

#include "worker/matrix/world.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "common/hash/hash.h"
#include "common/random/philox.h"
#include "worker/engine/limits.h"
#include "worker/job/engine_state.h"
#include "worker/job/resolve.h"

namespace trainyard::matrix {
namespace {

/// Counts what an engine asked for.
class CountingMemory final : public engine::MemorySource {
 public:
  Result<std::unique_ptr<engine::MemoryBlock>> allocate(int64_t bytes) override {
    bytes_ += bytes;
    return heap_.allocate(bytes);
  }
  int64_t bytes() const { return bytes_; }

 private:
  engine::HeapMemorySource heap_;
  int64_t bytes_ = 0;
};

struct Meeting {
  std::shared_ptr<comm::LocalWorld> local = std::make_shared<comm::LocalWorld>();
  std::vector<comm::Listener> listeners;
  comm::Options options;
};

Result<Meeting> prepare(const Cell& cell) {
  Meeting meeting;
  meeting.options.generation = 1;
  meeting.options.job_uid = "matrix";
  for (int rank = 0; rank < cell.ranks; ++rank) {
    comm::Endpoint endpoint{.rank = rank, .host_id = "here"};
    if (cell.transport != comm::TransportKind::kLocal && cell.ranks > 1) {
      TRAINYARD_ASSIGN(comm::Listener listener, comm::Listener::bind("127.0.0.1"));
      endpoint.address = listener.address();
      meeting.listeners.push_back(std::move(listener));
    } else {
      meeting.listeners.emplace_back();
    }
    meeting.options.endpoints.push_back(endpoint);
  }
  return meeting;
}

/// Of the weights that ops read, of which the state hash sees nothing where they are not the
/// masters. Collective over the shard group.
Result<std::vector<std::string>> hash_weights(engine::Engine& engine) {
  const comm::Groups& groups = engine.groups();
  const layout::Layout& layout = engine.states().layout();
  engine::Weights& weights = engine.states().weights();
  engine::Device& device = engine.device();
  std::vector<std::string> hashes(engine.name_order().size());
  for (int unit = 0; unit < layout.units(); ++unit) {
    if (!layout.holds(unit, groups.at)) continue;
    const DType dtype = layout.unit(unit).dtype;
    std::unique_ptr<engine::MemoryBlock> gathered;
    if (layout.sharding().weights) {
      TRAINYARD_ASSIGN(gathered, device.memory().allocate(layout.elements(unit) * size_of(dtype)));
      weights.lend(unit, gathered->bytes());
      TRAINYARD_TRY(
          groups.shard->all_gather(gathered->bytes(), layout.part_sizes(unit), dtype)->wait());
    }
    for (const int param : layout.unit(unit).tensors) {
      std::vector<std::byte> copy(static_cast<size_t>(layout.place(param).size() * size_of(dtype)));
      device.copy({copy.data(), static_cast<const std::byte*>(weights.data(param)), copy.size()});
      TRAINYARD_TRY(device.wait());
      Xxh3Stream hash;
      hash.update(copy);
      hashes[static_cast<size_t>(param)] = to_hex(hash.digest());
    }
    if (layout.sharding().weights) weights.lend(unit, {});
  }
  return hashes;
}

std::vector<UnitFacts> units_of(const engine::Engine& engine, const layout::Layout& layout) {
  const layout::Coordinate& at = engine.groups().at;
  const layout::StageMap& stages = engine.stages();
  std::vector<UnitFacts> units;
  for (int unit = 0; unit < layout.units(); ++unit) {
    if (!layout.holds(unit, at)) continue;
    UnitFacts facts{.dtype = layout.unit(unit).dtype, .elements = layout.elements(unit)};
    for (const int layer : layout.unit(unit).layers) {
      if (stages.pp_of(stages.stage_of(layer)) == at.pp) facts.layers.push_back(layer);
    }
    units.push_back(std::move(facts));
  }
  return units;
}

Result<RankFacts> train_one(api::EngineSpec spec, const Cell& cell, Meeting& meeting, int rank,
                            int64_t steps, const std::vector<int32_t>& stream) {
  spec.batch.micro_sequences = cell.micro_sequences;
  spec.parallelism.zero_stage = cell.zero_stage;
  spec.parallelism.shard = cell.shard;
  spec.parallelism.mode = cell.mode;
  spec.parallelism.pipeline = cell.pipeline;
  spec.parallelism.pipeline_schedule = cell.schedule;
  spec.parallelism.chunks_per_stage = cell.chunks;
  spec.parallelism.recompute = cell.recompute;
  comm::Options options = meeting.options;
  options.rank = rank;
  auto world =
      cell.transport == comm::TransportKind::kLocal
          ? comm::make_local_communicator(options, meeting.local)
          : comm::make_communicator(cell.transport, options,
                                    std::move(meeting.listeners[static_cast<size_t>(rank)]));
  if (!world) return world.error();
  TRAINYARD_ASSIGN(const comm::Groups groups,
                   comm::Groups::make(**world, cell.mesh(), cell.chunks));
  CountingMemory memory;
  TRAINYARD_ASSIGN(const auto device, engine::make_cpu_device(cell.cpu, &memory));
  TRAINYARD_ASSIGN(
      const auto engine,
      engine::Engine::create(
          {.spec = spec, .device = device.get(), .groups = &groups, .unit_bytes = 64 << 10}));
  engine->initialize();
  StreamBatches batches(stream, spec, groups.data_ranks(), groups.data_rank());
  RankFacts facts{.rank = rank};
  for (int64_t step = 0; step < steps; ++step) {
    TRAINYARD_ASSIGN(const engine::StepReport report, engine->step(batches));
    facts.losses.push_back(report.loss);
    facts.gradient_norms.push_back(report.gradient_norm);
  }
  TRAINYARD_TRY(engine->settle());
  facts.comm = groups.counters();
  TRAINYARD_ASSIGN(const Hash128 hash, engine::EngineState(*engine).hash());
  facts.state_hash = to_hex(hash);
  facts.allocated_bytes = memory.bytes();
  TRAINYARD_ASSIGN(facts.weights_hashes, hash_weights(*engine));
  facts.kernels = engine->kernel_counters();
  facts.recomputed = engine->recomputed();
  facts.memory = engine->memory();
  facts.units = units_of(*engine, engine->states().layout());
  const layout::StageMap& stages = engine->stages();
  for (int stage = groups.at.pp; stage < stages.size(); stage += stages.ranks())
    facts.stages.push_back(stages.layers(stage));
  // Fewer windows than some layouts have ranks.
  spec.batch.global_sequences = 3;
  StreamBatches held_out(stream, spec, groups.data_ranks(), groups.data_rank());
  TRAINYARD_ASSIGN(const engine::EvaluationReport evaluation,
                   engine->evaluate(held_out, 3, spec.batch.micro_sequences));
  facts.losses.push_back(evaluation.loss);
  return facts;
}

}  // namespace

std::vector<int32_t> make_token_stream(int64_t count, int64_t vocab, uint64_t seed) {
  std::vector<int32_t> stream(static_cast<size_t>(count));
  int64_t last = 1;
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t draw = mix64(seed ^ static_cast<uint64_t>(i));
    // Mostly a fixed successor, sometimes anything: something to learn, never learnt wholly.
    last = draw % 5 == 0 ? static_cast<int64_t>((draw >> 8) % static_cast<uint64_t>(vocab))
                         : (last * 7 + 3) % vocab;
    stream[static_cast<size_t>(i)] = static_cast<int32_t>(last);
  }
  return stream;
}

StreamBatches::StreamBatches(const std::vector<int32_t>& stream, const api::EngineSpec& spec,
                             int data_ranks, int data_rank)
    : stream_(stream),
      partition_(engine::partition_of(spec.batch, data_ranks)),
      tokens_per_sample_(spec.data.sequence_length),
      data_rank_(data_rank) {}

void StreamBatches::start_step(int64_t step) {
  end_step();
  first_ = step * partition_.micro_batches(data_rank_);
}

void StreamBatches::end_step() {
  first_ += std::exchange(asked_, 0);
  for (Buffer& buffer : buffers_) {
    buffer.tokens.clear();
    buffer.targets.clear();
    buffer.sequences.clear();
  }
}

Result<data::MicroBatch> StreamBatches::micro_batch(int index) {
  const int64_t T = tokens_per_sample_;
  const int64_t samples = (static_cast<int64_t>(stream_.size()) - 1) / T;
  const int64_t step = (first_ + index) / partition_.micro_batches(data_rank_);
  const layout::Range share =
      partition_.micro_batch(data_rank_, (first_ + index) % partition_.micro_batches(data_rank_));
  asked_ = std::max<int64_t>(asked_, index + 1);
  if (std::ssize(buffers_) < asked_) buffers_.resize(static_cast<size_t>(asked_));
  Buffer& buffer = buffers_[static_cast<size_t>(index)];
  for (int64_t row = share.begin + std::ssize(buffer.sequences); row < share.end; ++row) {
    const int64_t ordinal = step * partition_.samples + row;
    buffer.sequences.push_back(
        {.begin = std::ssize(buffer.tokens), .length = T, .ordinal = ordinal});
    const auto first = stream_.begin() + (ordinal % samples) * T;
    buffer.tokens.insert(buffer.tokens.end(), first, first + T);
    buffer.targets.insert(buffer.targets.end(), first + 1, first + T + 1);
  }
  return data::MicroBatch{
      .rows = {.count = std::ssize(buffer.tokens), .sequences = buffer.sequences},
      .tokens = buffer.tokens,
      .targets = buffer.targets};
}

Result<std::vector<RankFacts>> train_world(const api::EngineSpec& spec, const Cell& cell,
                                           int64_t steps, const std::vector<int32_t>& stream) {
  TRAINYARD_ASSIGN(Meeting meeting, prepare(cell));
  std::vector<Result<RankFacts>> results(static_cast<size_t>(cell.ranks),
                                         Error{ErrorCode::kInternal, "did not run"});
  {
    std::vector<std::jthread> ranks;
    for (int rank = 0; rank < cell.ranks; ++rank) {
      ranks.emplace_back([&, rank] {
        results[static_cast<size_t>(rank)] = train_one(spec, cell, meeting, rank, steps, stream);
      });
    }
  }
  std::vector<RankFacts> facts;
  for (size_t rank = 0; rank < results.size(); ++rank) {
    if (!results[rank]) return results[rank].error().with_context("rank " + std::to_string(rank));
    facts.push_back(*std::move(results[rank]));
  }
  return facts;
}

api::EngineSpec prime_spec(api::NumberFormat compute) {
  api::EngineSpec spec;
  spec.model.layers = 2;
  spec.model.hidden = 66;  // a head of 22: even, as bf16 pairs want, and no power of two
  spec.model.heads = 3;
  spec.model.ffn = 101;
  spec.model.vocab = 67;
  spec.model.max_positions = 31;
  spec.model.dropout = 0.1;
  spec.data.sequence_length = 29;
  spec.batch = {.global_sequences = 11, .micro_sequences = 4};
  spec.steps = 5;
  spec.optimizer.learning_rate = 1e-2;
  spec.optimizer.gradient_clip = 0.25;
  spec.learning_rate_schedule = {.name = api::ScheduleName::kCosine, .warmup_steps = 2};
  spec.precision.compute = compute;
  spec.numerics = {.mode = api::NumericsMode::kCanonical, .grain_tokens = 13};
  spec.seed = 4711;
  return spec;
}

}  // namespace trainyard::matrix

#include "worker/matrix/world.h"

#include <algorithm>
#include <numeric>
#include <thread>
#include <utility>

#include "common/hash/hash.h"
#include "common/random/philox.h"
#include "worker/data/documents.h"
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

/// A tensor of which each tensor rank has a part, from the parts one after the other.
std::vector<std::byte> assembled(const layout::Layout& layout, int tensor, int tensor_ranks,
                                 const std::byte* parts, int64_t element) {
  const std::vector<int64_t>& shape = layout.tensor(tensor).shape;
  const int64_t width = shape.size() > 1 ? shape[1] : 1;
  std::vector<std::byte> whole(static_cast<size_t>(shape[0] * width * element));
  for (int tp = 0; tp < tensor_ranks; ++tp) {
    for (const layout::Rectangle& slice : layout.at_tensor_rank(tp).slices(tensor)) {
      const int64_t row = slice.elements() / slice.shape[0] * element;
      for (int64_t r = 0; r < slice.shape[0]; ++r, parts += row) {
        const int64_t column = slice.offset.size() > 1 ? slice.offset[1] : 0;
        std::copy_n(parts, row, whole.data() + ((slice.offset[0] + r) * width + column) * element);
      }
    }
  }
  return whole;
}

/// What ops read of a parameter, all tensor ranks together. Collective over the tensor group.
Result<std::vector<std::byte>> whole_weights(engine::Engine& engine, int param) {
  const comm::Groups& groups = engine.groups();
  const layout::Layout& layout = engine.states().layout();
  engine::Weights& weights = engine.states().weights();
  const int64_t element = size_of(weights.dtype(param));
  const int ranks = layout.tensor(param).cut.segments.empty() ? 1 : groups.mesh.tp;
  std::vector<int64_t> counts;
  for (int tp = 0; tp < ranks; ++tp)
    counts.push_back((ranks > 1 ? layout.at_tensor_rank(tp) : layout).place(param).size());
  const int at = ranks > 1 ? groups.at.tp : 0;
  const int64_t before = std::accumulate(counts.begin(), counts.begin() + at, int64_t{0});
  const int64_t all = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  std::vector<std::byte> parts(static_cast<size_t>(all * element));
  engine.device().copy({parts.data() + before * element,
                        static_cast<const std::byte*>(weights.data(param)),
                        static_cast<size_t>(counts[static_cast<size_t>(at)] * element)});
  TRAINYARD_TRY(engine.device().wait());
  if (ranks == 1) return parts;
  TRAINYARD_TRY(groups.tensor->all_gather(parts, counts, weights.dtype(param))->wait());
  return assembled(layout, param, ranks, parts.data(), element);
}

/// Of the weights that ops read, of which the state hash sees nothing where they are not the
/// masters. Collective over the shard and tensor groups.
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
      TRAINYARD_ASSIGN(const std::vector<std::byte> copy, whole_weights(engine, param));
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
    const std::vector<int>& tensors = layout.unit(unit).tensors;
    const bool whole = std::all_of(tensors.begin(), tensors.end(), [&](int tensor) {
      return layout.tensor(tensor).cut.segments.empty();
    });
    UnitFacts facts{
        .dtype = layout.unit(unit).dtype, .elements = layout.elements(unit), .whole = whole};
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
  spec.parallelism.tensor = cell.tensor;
  spec.parallelism.sequence_parallel = cell.slices;
  spec.parallelism.context = cell.context;
  if (cell.ring) spec.parallelism.context_mode = api::ContextMode::kRing;
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
  TRAINYARD_TRY(engine->initialize());
  StreamBatches batches(stream, spec, groups.data_ranks(), groups.data_rank());
  RankFacts facts{.rank = rank};
  for (int64_t step = 0; step < steps; ++step) {
    TRAINYARD_ASSIGN(const engine::StepReport report, engine->step(batches));
    facts.losses.push_back(report.loss);
    facts.gradient_norms.push_back(report.gradient_norm);
  }
  TRAINYARD_TRY(engine->settle());
  facts.comm = groups.counters();
  facts.attention_pairs = batches.pairs();
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
      partition_(engine::partition_of(spec, data_ranks)),
      tokens_per_sample_(spec.data.sequence_length),
      isolates_(spec.data.documents == api::Documents::kIsolate),
      window_(spec.model.sliding_window),
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
    buffer.samples.clear();
    buffer.documents.clear();
  }
}

/// Key by key, apart from how the engine counts: but for half of those that a row has with itself.
void StreamBatches::count_pairs(std::span<const int32_t> window) {
  int64_t seen = 0;  // of its document, up to the row at hand
  for (size_t row = 0; row < window.size(); ++row) {
    seen = isolates_ && window[row] == kEndOfText && row > 0 ? 1 : seen + 1;
    const bool hides = window_ > 0 && seen > window_;
    pairs_ += hides ? 2 * window_ : 2 * seen - 1;
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
  for (int64_t row = share.begin + std::ssize(buffer.samples); row < share.end; ++row) {
    const int64_t ordinal = step * partition_.samples + row;
    const kernels::Sequence sample{
        .begin = std::ssize(buffer.tokens), .length = T, .ordinal = ordinal};
    buffer.samples.push_back(sample);
    const auto first = stream_.begin() + (ordinal % samples) * T;
    if (isolates_) {
      data::add_documents({first, first + T}, kEndOfText, sample.begin, ordinal, buffer.documents);
    }
    count_pairs({first, first + T});
    buffer.tokens.insert(buffer.tokens.end(), first, first + T);
    buffer.targets.insert(buffer.targets.end(), first + 1, first + T + 1);
  }
  return data::MicroBatch{.rows = {.count = std::ssize(buffer.tokens),
                                   .sequences = isolates_ ? buffer.documents : buffer.samples},
                          .samples = buffer.samples,
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

api::EngineSpec prime_spec(api::NumberFormat compute, api::ModelFamily family) {
  api::EngineSpec spec;
  spec.model.layers = 2;
  spec.model.hidden = 66;  // a head of 22: even, as bf16 pairs want, and no power of two
  spec.model.heads = 3;
  spec.model.ffn = 101;
  spec.model.vocab = 67;
  spec.model.max_positions = 31;
  spec.model.dropout = 0.1;
  spec.model.family = family;
  if (family != api::ModelFamily::kGPT2) {
    spec.model.heads = 4;  // groups of two, together wider than the residual stream
    spec.model.kv_heads = 2;
    spec.model.head_dim = 22;
    spec.model.rope_theta = 500;
    spec.model.tie_embeddings = family != api::ModelFamily::kLlama;
  }
  spec.data.sequence_length = 29;
  spec.batch = {.global_sequences = 11, .micro_sequences = 4};
  spec.steps = 5;
  spec.optimizer.learning_rate = 1e-2;
  spec.optimizer.gradient_clip = 0.25;
  spec.learning_rate_schedule = {.name = api::ScheduleName::kCosine, .warmup_steps = 2};
  spec.precision.compute = compute;
  spec.numerics.mode = api::NumericsMode::kCanonical;
  spec.seed = 4711;
  return spec;
}

api::EngineSpec tensor_spec(api::NumberFormat compute, api::ModelFamily family) {
  api::EngineSpec spec = prime_spec(compute, family);
  spec.model.hidden = 72;
  spec.model.heads = 12;
  if (family != api::ModelFamily::kGPT2) {
    // Which 4 tensor ranks share, or have one each.
    spec.model.kv_heads = family == api::ModelFamily::kLlama ? 4 : 2;
    spec.model.head_dim = 6;
  }
  spec.numerics = cut_numerics();
  spec.numerics.tensor_chunks = 12;
  return spec;
}

api::EngineSpec sliced_spec(api::NumberFormat compute, api::ModelFamily family) {
  api::EngineSpec spec = tensor_spec(compute, family);
  spec.data.sequence_length = 24;
  spec.numerics.grain_tokens = 2;
  return spec;
}

api::EngineSpec context_spec(api::NumberFormat compute, api::ModelFamily family) {
  api::EngineSpec spec = sliced_spec(compute, family);
  if (family != api::ModelFamily::kGPT2) spec.model.kv_heads = 4;  // 2 context x 2 tensor ranks
  spec.data.sequence_length = 32;
  spec.model.max_positions = 37;
  return spec;
}

api::EngineSpec ring_spec(api::NumberFormat compute, api::ModelFamily family) {
  api::EngineSpec spec = context_spec(compute, family);
  spec.data.sequence_length = 48;
  spec.model.max_positions = 53;
  spec.numerics.key_block = 2;
  return spec;
}

api::NumericsSpec cut_numerics() {
  return {.mode = api::NumericsMode::kCanonical,
          .grain_tokens = 13,
          .key_block = 13,
          .tensor_chunks = 3};
}

}  // namespace trainyard::matrix

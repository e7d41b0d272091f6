#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/api/engine_spec.h"
#include "worker/comm/factory.h"
#include "worker/data/batch_partition.h"
#include "worker/data/micro_batch.h"
#include "worker/device/cpu_device.h"
#include "worker/engine/engine.h"

namespace trainyard::matrix {

/// A token stream of `count` pseudo-random tokens below `vocab` with some structure to learn.
std::vector<int32_t> make_token_stream(int64_t count, int64_t vocab, uint64_t seed);

/// Micro-batches of one data rank over a token stream: sample s of the stream is tokens
/// [s T, s T + T] (stride T); global batch i takes samples i B .. i B + B - 1, modulo the stream.
/// Where the spec isolates documents, kEndOfText begins one.
class StreamBatches final : public data::MicroBatchSource {
 public:
  StreamBatches(const std::vector<int32_t>& stream, const api::EngineSpec& spec, int data_ranks,
                int data_rank);
  /// Chooses the global batch that is read next; else they follow one another.
  void start_step(int64_t step);
  Result<data::MicroBatch> micro_batch(int index) override;
  void end_step() override;
  static constexpr int32_t kEndOfText = 0;
  /// Of all sequences that were handed out: length^2, less what a window hides.
  int64_t pairs() const { return pairs_; }

 private:
  void count_pairs(std::span<const int32_t> window);

  struct Buffer {
    std::vector<int32_t> tokens;
    std::vector<int32_t> targets;
    std::vector<kernels::Sequence> samples;
    std::vector<kernels::Sequence> documents;
  };
  const std::vector<int32_t>& stream_;
  data::BatchPartition partition_;
  int64_t tokens_per_sample_;
  bool isolates_;
  int64_t window_;
  int64_t pairs_ = 0;
  int data_rank_;
  int64_t first_ = 0;            // micro-batch of all global batches that index 0 stands for
  std::vector<Buffer> buffers_;  // by index
  int64_t asked_ = 0;            // of this step
};

/// One place of the equality matrix: who computes, never what.
struct Cell {
  int ranks = 1;
  comm::TransportKind transport = comm::TransportKind::kLocal;
  engine::CpuDeviceOptions cpu;
  int64_t micro_sequences = 1;
  int shard = 0;  ///< data ranks that share the states of one copy; 0: all. 1 at stage 0
  int zero_stage = 1;
  api::ParallelMode mode = api::ParallelMode::kDistributed;
  int pipeline = 1;
  api::PipelineSchedule schedule = api::PipelineSchedule::kOneFOneB;
  int chunks = 1;  ///< stages per rank; more than one under kInterleaved
  api::Recompute recompute = api::Recompute::kNone;
  int tensor = 1;       ///< ranks that share every layer
  bool slices = false;  ///< and of what they would have whole, slices of sequences
  int context = 1;      ///< ranks that share every sequence
  bool ring = false;    ///< and hand keys around

  layout::Mesh mesh() const {
    const int data = ranks / pipeline / tensor / context;
    const int fsdp = shard == 0 ? data : shard;
    return {.pp = pipeline,
            .dp = data / fsdp,
            .fsdp = fsdp,
            .cp = context,
            .tp = tensor,
            .slices = slices,
            .ring = ring};
  }
};

/// Parameters that travel together. That they do is the engine's choice; what a rank holds of them
/// is for the formulas to say.
struct UnitFacts {
  DType dtype = DType::kFloat32;
  std::vector<int> layers;  ///< as layout::Unit::layers, those of the rank's stages
  int64_t elements = 0;     ///< gaps included
  bool whole = false;       ///< tensor ranks have all of it each
};

/// What one rank did, to be held against formulas.
struct RankFacts {
  std::string state_hash;
  std::vector<double> losses;  ///< of each step, and of an evaluation after the last
  std::vector<double> gradient_norms;
  int rank = 0;
  kernels::KernelCounters kernels;
  kernels::KernelCounters recomputed;  ///< of these
  comm::Counters comm;
  int64_t attention_pairs = 0;  ///< StreamBatches::pairs() of its steps
  /// By parameter: of the weights that its ops read, gathered where it holds a part; empty where it
  /// has none.
  std::vector<std::string> weights_hashes;
  std::vector<layout::Range> stages;  ///< the layers of each of its stages
  std::vector<UnitFacts> units;       ///< that it holds
  engine::MemoryReport memory;
  int64_t allocated_bytes = 0;
};

/// Trains `steps` steps of `spec` over `stream` with ranks as threads of this process, connected by
/// the cell's transport: shared memory and sockets as between processes, but one address space.
/// Returns one entry a rank. Errors: the first rank's that failed.
Result<std::vector<RankFacts>> train_world(const api::EngineSpec& spec, const Cell& cell,
                                           int64_t steps, const std::vector<int32_t>& stream);

/// A small run of a family with prime sizes where they may be prime, dropout, decay and active
/// clipping. Its numerics name no value.
api::EngineSpec prime_spec(api::NumberFormat compute,
                           api::ModelFamily family = api::ModelFamily::kGPT2);

/// A run of 12 heads with C = 12 pieces, which 2, 3, 4, 6 and 12 tensor ranks can share; those of
/// Llama's kind have 4 key-value heads. They divide neither the feed-forward width nor the
/// vocabulary.
api::EngineSpec tensor_spec(api::NumberFormat compute,
                            api::ModelFamily family = api::ModelFamily::kGPT2);

/// The same of sequences that 2, 3, 4, 6 and 12 tensor ranks can have slices of, in whole grains.
api::EngineSpec sliced_spec(api::NumberFormat compute,
                            api::ModelFamily family = api::ModelFamily::kGPT2);

/// The same of sequences that 2 and 4 context ranks can share, each of them 2 tensor ranks, in
/// whole grains.
api::EngineSpec context_spec(api::NumberFormat compute,
                             api::ModelFamily family = api::ModelFamily::kGPT2);

/// The same of sequences that 2, 3 and 4 ranks can share, in rings, too, each of them 2 tensor
/// ranks, which of 2 can have slices.
api::EngineSpec ring_spec(api::NumberFormat compute,
                          api::ModelFamily family = api::ModelFamily::kGPT2);

/// Numerics for it that cut its sums wherever they can be cut: a chunk for each head, more grains
/// and blocks of keys than one a sequence, none of which its sizes divide.
api::NumericsSpec cut_numerics();

}  // namespace trainyard::matrix

#include "worker/data/batch_loader.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "worker/data/micro_batch_buffer.h"
#include "worker/data/sampler.h"

namespace trainyard::data {
namespace {

Error out_of_range(std::string_view option, int64_t found, std::string_view wanted) {
  return {ErrorCode::kInvalidConfig, "batch loader: " + std::string(option) + ": found " +
                                         std::to_string(found) + ", wanted " + std::string(wanted)};
}

Status check(const BatchLoaderOptions& options) {
  if (options.tokens_per_sample < 1) {
    return out_of_range("sequenceLength", options.tokens_per_sample, "at least 1");
  }
  const BatchPartition& batch = options.batch;
  if (batch.samples < 1) return out_of_range("globalSequences", batch.samples, "at least 1");
  if (batch.micro_samples < 1) {
    return out_of_range("microSequences", batch.micro_samples, "at least 1");
  }
  if (batch.ranks < 1 || batch.ranks > batch.samples) {
    return out_of_range("data-parallel ranks", batch.ranks,
                        "1.." + std::to_string(batch.samples) +
                            ", so that each has a sequence of the global batch; lower the ranks or "
                            "raise globalSequences");
  }
  if (options.data_rank < 0 || options.data_rank >= batch.ranks) {
    return out_of_range("data-parallel rank", options.data_rank,
                        "0.." + std::to_string(batch.ranks - 1));
  }
  if (options.first_step < 0) {
    return out_of_range("first step", options.first_step, "at least 0");
  }
  if (options.prefetch < 1 || options.prefetch > 64) {
    return out_of_range("prefetch", options.prefetch, "1..64");
  }
  return {};
}

}  // namespace

int64_t batch_loader_bytes(const BatchPartition& batch, int64_t data_rank,
                           int64_t tokens_per_sample, bool cuts_documents) {
  const int64_t slots = batch.micro_batches(data_rank) + kPrefetchBatches;
  const int64_t rows = slots * batch.micro_batch(data_rank, 0).size();
  return rows * tokens_per_sample * MicroBatchBuffer::row_bytes(cuts_documents);
}

/// A ring of buffers between the reading thread and the consumer. Buffers [step, read) are filled;
/// the consumer may use those of its step. Whoever of the two goes last destroys it: a thread that
/// a disk holds up cannot be joined.
struct BatchLoader::Ring {
  Ring(const TokenSet& token_set, const BatchLoaderOptions& loader_options)
      : tokens(token_set),
        options(loader_options),
        sampler(loader_options.seed, token_set.samples(loader_options.tokens_per_sample)),
        micro_batches(options.batch.micro_batches(options.data_rank)),
        ring(static_cast<size_t>(micro_batches + options.prefetch),
             MicroBatchBuffer(options.batch.micro_batch(options.data_rank, 0).size(),
                              options.tokens_per_sample, options.end_of_text)) {}

  MicroBatchBuffer& slot(int64_t batch) {
    return ring[static_cast<size_t>(batch % static_cast<int64_t>(ring.size()))];
  }

  // Fills the buffer of the batch-th micro-batch since the start.
  Status fill(int64_t batch) {
    MicroBatchBuffer& buffer = slot(batch);
    const int64_t first = (options.first_step + batch / micro_batches) * options.batch.samples;
    const layout::Range rows = options.batch.micro_batch(options.data_rank, batch % micro_batches);
    buffer.clear();
    for (int64_t ordinal = first + rows.begin; ordinal < first + rows.end; ++ordinal) {
      const int64_t sample = sampler.sample_at(ordinal);
      reading.store(sample, std::memory_order_relaxed);
      TRAINYARD_TRY(buffer.add_window(tokens, sample, ordinal));
    }
    return {};
  }

  void run(const std::stop_token& stop) {
    read_ahead(stop);
    const std::scoped_lock lock(mutex);
    ended = true;
    ready.notify_one();
  }

  void read_ahead(const std::stop_token& stop) {
    for (int64_t batch = 0;; ++batch) {
      {
        std::unique_lock lock(mutex);
        const auto has_room = [&] { return batch - step < static_cast<int64_t>(ring.size()); };
        if (!room.wait(lock, stop, has_room)) return;
      }
      Status status = fill(batch);
      const std::scoped_lock lock(mutex);
      if (!status) {
        failure = std::move(status);
        ready.notify_one();
        return;
      }
      read = batch + 1;
      ready.notify_one();
    }
  }

  Error is_late() const {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(options.timeout).count();
    const int64_t begin = reading.load(std::memory_order_relaxed) * options.tokens_per_sample;
    const std::string first = tokens.file_of(begin).path().string();
    const std::string last = tokens.file_of(begin + options.tokens_per_sample).path().string();
    return {ErrorCode::kDeadline,
            "batch loader: waited " + std::to_string(seconds) + " s for tokens " +
                std::to_string(begin) + " to " + std::to_string(begin + options.tokens_per_sample) +
                " of engine.data.tokens, in " + first + (last == first ? "" : " to " + last) +
                "; look whether its disk or network mount is alive"};
  }

  const TokenSet tokens;
  const BatchLoaderOptions options;
  const Sampler sampler;
  const int64_t micro_batches;  // of a step
  std::vector<MicroBatchBuffer> ring;
  std::atomic<int64_t> reading{0};  // the sample that is read now or was last

  std::mutex mutex;
  std::condition_variable_any room;
  std::condition_variable_any ready;
  int64_t read = 0;  // batches filled, guarded by mutex as is all below
  int64_t step = 0;  // the first batch of the consumer's step
  Status failure;
  bool ended = false;  // the thread is about to
};

struct BatchLoader::Impl {
  explicit Impl(std::shared_ptr<Ring> shared)
      : ring(std::move(shared)),
        thread([ring = ring](const std::stop_token& stop) { ring->run(stop); }) {}
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  /// A read that has begun ends by itself where the disk answers. One that hangs would hold up the
  /// rank's end for ever: its thread is left alone with what it uses, and goes with the process.
  ~Impl() {
    constexpr std::chrono::seconds kReadEnds{1};
    thread.request_stop();
    std::unique_lock lock(ring->mutex);
    const bool ended = ring->ready.wait_for(lock, kReadEnds, [this] { return ring->ended; });
    lock.unlock();
    if (!ended) thread.detach();
  }

  const std::shared_ptr<Ring> ring;
  std::jthread thread;
};

Result<BatchLoader> BatchLoader::open(const TokenSet& tokens, const BatchLoaderOptions& options) {
  TRAINYARD_TRY(check(options));
  const int64_t samples = tokens.samples(options.tokens_per_sample);
  if (samples < 1 || samples > kSamplesMax) {
    return Error{ErrorCode::kInvalidConfig,
                 "batch loader: engine.data.tokens holds " + std::to_string(tokens.tokens()) +
                     " tokens, wanted at least sequenceLength + 1 = " +
                     std::to_string(options.tokens_per_sample + 1) + " and at most 2^48 samples"};
  }
  return BatchLoader(std::make_unique<Impl>(std::make_shared<Ring>(tokens, options)));
}

BatchLoader::BatchLoader(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
BatchLoader::BatchLoader(BatchLoader&&) noexcept = default;
BatchLoader& BatchLoader::operator=(BatchLoader&&) noexcept = default;
BatchLoader::~BatchLoader() = default;

Result<MicroBatch> BatchLoader::micro_batch(int index) {
  Ring& ring = *impl_->ring;
  TRAINYARD_CHECK(index >= 0 && index < ring.micro_batches);
  std::unique_lock lock(ring.mutex);
  const int64_t batch = ring.step + index;
  const auto is_ready = [&] { return ring.read > batch || !ring.failure; };
  if (!ring.ready.wait_for(lock, ring.options.timeout, is_ready)) return ring.is_late();
  if (ring.read <= batch) return ring.failure.error();
  return ring.slot(batch).view();
}

void BatchLoader::end_step() {
  Ring& ring = *impl_->ring;
  const std::scoped_lock lock(ring.mutex);
  ring.step += ring.micro_batches;
  ring.room.notify_one();
}

}  // namespace trainyard::data

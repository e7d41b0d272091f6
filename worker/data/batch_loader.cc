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
#include "common/layout/mesh.h"
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
  if (options.global_sequences < 1) {
    return out_of_range("globalSequences", options.global_sequences, "at least 1");
  }
  if (options.micro_sequences < 1) {
    return out_of_range("microSequences", options.micro_sequences, "at least 1");
  }
  if (options.data_ranks < 1 || options.data_ranks > options.global_sequences) {
    return out_of_range("data-parallel ranks", options.data_ranks,
                        "1.." + std::to_string(options.global_sequences) +
                            ", so that each has a sequence of the global batch; lower the ranks or "
                            "raise globalSequences");
  }
  if (options.data_rank < 0 || options.data_rank >= options.data_ranks) {
    return out_of_range("data-parallel rank", options.data_rank,
                        "0.." + std::to_string(options.data_ranks - 1));
  }
  if (options.first_step < 0) {
    return out_of_range("first step", options.first_step, "at least 0");
  }
  if (options.prefetch < 1 || options.prefetch > 64) {
    return out_of_range("prefetch", options.prefetch, "1..64");
  }
  return {};
}

layout::Range rows_of(const BatchLoaderOptions& options) {
  return layout::even_share(options.global_sequences, options.data_ranks, options.data_rank);
}

}  // namespace

int64_t share_of(const BatchLoaderOptions& options) { return rows_of(options).size(); }

int64_t micro_batches_of(const BatchLoaderOptions& options) {
  return (share_of(options) + options.micro_sequences - 1) / options.micro_sequences;
}

/// A ring of buffers between the reading thread and the consumer. Buffers [held, read) are filled;
/// the consumer may use the two newest it was given, so the ring has two more than are read ahead.
struct BatchLoader::Impl {
  Impl(const TokenSet& token_set, const BatchLoaderOptions& loader_options)
      : tokens(token_set),
        options(loader_options),
        sampler(loader_options.seed, token_set.samples(loader_options.tokens_per_sample)),
        rows(rows_of(loader_options)),
        micro_batches(micro_batches_of(loader_options)) {
    const int64_t rows_max = std::min(options.micro_sequences, rows.size());
    ring.reserve(static_cast<size_t>(options.prefetch + 2));
    for (int64_t i = 0; i < options.prefetch + 2; ++i)
      ring.emplace_back(rows_max, options.tokens_per_sample);
  }

  MicroBatchBuffer& slot(int64_t batch) {
    return ring[static_cast<size_t>(batch % static_cast<int64_t>(ring.size()))];
  }

  // Fills the buffer of the batch-th micro-batch since the start.
  Status fill(int64_t batch) {
    MicroBatchBuffer& buffer = slot(batch);
    const int64_t step = options.first_step + batch / micro_batches;
    const int64_t micro_index = batch % micro_batches;
    const int64_t begin = rows.begin + micro_index * options.micro_sequences;
    const int64_t end = std::min(begin + options.micro_sequences, rows.end);
    buffer.begin(step, micro_index);
    for (int64_t row = begin; row < end; ++row) {
      const int64_t ordinal = step * options.global_sequences + row;
      TRAINYARD_TRY(buffer.add_row(tokens, sampler.sample_at(ordinal), ordinal));
    }
    return {};
  }

  void read_ahead(const std::stop_token& stop) {
    for (int64_t batch = 0;; ++batch) {
      {
        std::unique_lock lock(mutex);
        const auto has_room = [&] { return batch - held < static_cast<int64_t>(ring.size()); };
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

  const TokenSet& tokens;
  const BatchLoaderOptions options;
  const Sampler sampler;
  const layout::Range rows;  // of each global batch
  const int64_t micro_batches;
  std::vector<MicroBatchBuffer> ring;

  std::mutex mutex;
  std::condition_variable_any room;
  std::condition_variable_any ready;
  int64_t read = 0;  // batches filled, guarded by mutex as are the next three
  int64_t held = 0;  // the oldest batch the consumer may still use
  int64_t given = 0;
  Status failure;
  Duration waited{};
  std::jthread thread;  // last: joined before anything it uses goes
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
  auto impl = std::make_unique<Impl>(tokens, options);
  impl->thread =
      std::jthread([raw = impl.get()](const std::stop_token& stop) { raw->read_ahead(stop); });
  return BatchLoader(std::move(impl));
}

BatchLoader::BatchLoader(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
BatchLoader::BatchLoader(BatchLoader&&) noexcept = default;
BatchLoader& BatchLoader::operator=(BatchLoader&&) noexcept = default;
BatchLoader::~BatchLoader() = default;

Result<MicroBatch> BatchLoader::next() {
  Impl& impl = *impl_;
  std::unique_lock lock(impl.mutex);
  // The batch before the last one given goes back to the reader; the last one stays usable.
  impl.held = std::max<int64_t>(0, impl.given - 1);
  impl.room.notify_one();
  const auto is_ready = [&] { return impl.read > impl.given || !impl.failure; };
  if (!is_ready()) {
    const auto start = std::chrono::steady_clock::now();
    const bool in_time = impl.ready.wait_for(lock, impl.options.timeout, is_ready);
    impl.waited += std::chrono::steady_clock::now() - start;
    if (!in_time) {
      const auto seconds =
          std::chrono::duration_cast<std::chrono::seconds>(impl.options.timeout).count();
      return Error{ErrorCode::kDeadline,
                   "batch loader: waited " + std::to_string(seconds) +
                       " s for the reading thread to read micro-batch " +
                       std::to_string(impl.given) + " from " +
                       impl.tokens.files().front().path().parent_path().string() +
                       "; is its disk or network mount alive?"};
    }
  }
  if (impl.read <= impl.given) return impl.failure.error();
  const int64_t batch = impl.given++;
  return impl.slot(batch).view();
}

int64_t BatchLoader::samples() const { return impl_->sampler.samples(); }

Duration BatchLoader::waited() const {
  const std::scoped_lock lock(impl_->mutex);
  return impl_->waited;
}

}  // namespace trainyard::data

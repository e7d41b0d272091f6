#include "worker/device/cuda_kernel_set.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>

#include "common/base/check.h"
#include "kernels/cuda/head_parts.h"

namespace trainyard::engine {
namespace {

namespace cuda = kernels::cuda;
using kernels::Sequence;

constexpr int64_t kAlignment = 256;
static_assert(kCudaColumnSumBlocks == cuda::kColumnSumBlocks);
static_assert(kCudaFrequentTokenRows == cuda::kFrequentTokenRows);

/// Rows and width of an operation on `count` elements that knows no rows: kernels take eight
/// elements of a row at a time.
std::pair<int64_t, int64_t> rows_and_width(int64_t count) {
  const int64_t width = std::gcd(count, int64_t{1024});
  return {count / width, width};
}

}  // namespace

CudaKernelSet::CudaKernelSet(CudaStream& stream, std::unique_ptr<cuda::Gemm> gemm,
                             std::unique_ptr<cuda::Attention> attention, const KernelShapes& shapes)
    : stream_(stream),
      gemm_(std::move(gemm)),
      attention_(std::move(attention)),
      shapes_(shapes),
      places_(cuda_scratch(shapes)) {}

CudaKernelSet::~CudaKernelSet() = default;

void CudaKernelSet::set_scratch(std::span<std::byte> scratch) {
  TRAINYARD_CHECK(static_cast<int64_t>(scratch.size()) >= scratch_bytes());
  const auto address = reinterpret_cast<uintptr_t>(scratch.data());
  scratch_ = scratch.data() + (kAlignment - address % kAlignment) % kAlignment;
}

bool CudaKernelSet::fits(const char* what, int64_t rows, int64_t width) {
  return ready() && admits(what, rows, width);
}

/// Whether scratch was laid out for so many rows. For operations that upload before they ask
/// whether they are enqueued.
bool CudaKernelSet::admits(const char* what, int64_t rows, int64_t width) {
  if (!stream_.status()) return false;
  if (rows <= shapes_.rows && width <= shapes_.widest) return true;
  stream_.note(Error{ErrorCode::kInternal, std::string(what) + ": found " + std::to_string(rows) +
                                               " rows of " + std::to_string(width) +
                                               ", wanted at most " + std::to_string(shapes_.rows) +
                                               " of " + std::to_string(shapes_.widest)});
  return false;
}

/// The rows of each grain; fp32 sums have one.
std::vector<Sequence> CudaKernelSet::grains_of(const kernels::Grains& grains, int64_t rows) const {
  if (grains.sequences.empty() || shapes_.sums == DType::kFloat32)
    return {Sequence{.begin = 0, .length = rows}};
  std::vector<Sequence> all;
  for (size_t i = 0; i < grains.sequences.size(); ++i) {
    const Sequence& sequence = grains.sequences[i];
    if (static_cast<int64_t>(i) % shapes_.grain_sequences == 0)
      all.push_back({.begin = sequence.begin});
    all.back().length += sequence.length;
  }
  return all;
}

// Norms, biases, activations.

void CudaKernelSet::layer_norm_forward(const kernels::LayerNormForward& p) {
  if (p.rows <= 0 || !fits("layer_norm_forward", p.rows, p.width)) return;
  note("layer_norm_forward", cuda::layer_norm_forward(p, {}, stream_.get()));
}

void CudaKernelSet::layer_norm_backward_input(const kernels::LayerNormBackwardInput& p) {
  if (p.rows <= 0 || !fits("layer_norm_backward", p.rows, p.width)) return;
  cuda::LayerNormBackward of{.rows = p.rows, .width = p.width, .centred = p.centred};
  of.dy = p.dy;
  of.x = p.x;
  of.d_residual = p.dx;
  of.gamma = p.gamma;
  of.mean = p.mean;
  of.rstd = p.rstd;
  of.dx = p.dx;
  of.scratch = at<float>(places_.sums);
  note("layer_norm_backward", cuda::layer_norm_backward(of, stream_.get()));
}

void CudaKernelSet::layer_norm_backward_weight(const kernels::LayerNormBackwardWeight& p) {
  if (p.rows <= 0 || !fits("layer_norm_backward", p.rows, p.width)) return;
  for (const Sequence& grain : grains_of(p.grains, p.rows)) {
    if (!ready()) return;
    cuda::LayerNormBackward of{.rows = grain.length, .width = p.width, .centred = p.centred};
    of.dy = from(p.dy, grain.begin * p.width);
    of.x = from(p.x, grain.begin * p.width);
    of.gamma = at<float>(places_.partial);  // read, and of no use without the input's gradient
    if (p.centred) of.mean = p.mean + grain.begin;
    of.rstd = p.rstd + grain.begin;
    of.d_gamma = p.dgamma;
    if (p.centred) of.d_beta = p.dbeta;
    of.rounding = {p.quantum_log2, p.partials, p.overflow};
    of.scratch = at<float>(places_.sums);
    note("layer_norm_backward", cuda::layer_norm_backward(of, stream_.get()));
  }
}

void CudaKernelSet::bias_backward(const kernels::BiasBackward& p) {
  if (p.rows <= 0 || !fits("bias_backward", p.rows, p.width)) return;
  TRAINYARD_CHECK(p.stride == p.width);
  for (const Sequence& grain : grains_of(p.grains, p.rows)) {
    if (!ready()) return;
    kernels::BiasBackward of = p;
    of.rows = grain.length;
    of.dy = from(p.dy, grain.begin * p.width);
    note("bias_backward", cuda::bias_backward(of, at<float>(places_.sums), stream_.get()));
  }
}

void CudaKernelSet::gelu_forward(const kernels::GeluForward& p) {
  if (p.count <= 0 || !ready()) return;
  const int64_t width = rows_and_width(p.count).second;
  note("gelu_forward", cuda::gelu_forward(p, width, nullptr, stream_.get()));
}

void CudaKernelSet::gelu_backward(const kernels::GeluBackward& p) {
  if (p.count <= 0 || !ready()) return;
  const auto [rows, width] = rows_and_width(p.count);
  note("gelu_backward", cuda::gelu_backward(p, nullptr, {.rows = rows, .width = width, .dy = p.dx},
                                            at<float>(places_.sums), stream_.get()));
}

// What other families than GPT-2 have.

void CudaKernelSet::head_norm_forward(const kernels::HeadNormForward& p) {
  if (p.rows <= 0 || !fits("head_norm_forward", p.rows, 0)) return;
  note("head_norm_forward", cuda::head_norm_forward(p, stream_.get()));
}

void CudaKernelSet::head_norm_backward_input(const kernels::HeadNormBackwardInput& p) {
  if (p.rows <= 0 || !fits("head_norm_backward", p.rows, 0)) return;
  note("head_norm_backward", cuda::head_norm_backward_input(p, stream_.get()));
}

void CudaKernelSet::head_norm_backward_weight(const kernels::HeadNormBackwardWeight& p) {
  if (p.rows <= 0 || !fits("head_norm_backward", p.rows, 0)) return;
  const int64_t width = (p.heads + 2 * p.kv_heads) * p.head_dim;
  for (const Sequence& grain : grains_of(p.grains, p.rows)) {
    if (!ready()) return;
    kernels::HeadNormBackwardWeight of = p;
    of.rows = grain.length;
    of.x = from(p.x, grain.begin * width);
    of.dy = from(p.dy, grain.begin * width);
    of.rstd = p.rstd + grain.begin * (p.heads + p.kv_heads);
    note("head_norm_backward",
         cuda::head_norm_backward_weight(of, at<float>(places_.sums), stream_.get()));
  }
}

/// Cosines and sines of all positions are made once: every layer turns by the same.
void CudaKernelSet::upload_angles(std::span<const float> frequencies, float scale) {
  if (scale == angle_scale_ && std::ranges::equal(frequencies, frequencies_)) return;
  frequencies_.assign(frequencies.begin(), frequencies.end());
  angle_scale_ = scale;
  std::vector<float> table;
  table.reserve(static_cast<size_t>(2 * shapes_.rotary_positions) * frequencies.size());
  for (int64_t position = 0; position < shapes_.rotary_positions; ++position) {
    for (const float frequency : frequencies) {
      const double angle = static_cast<float>(position) * frequency;
      table.push_back(static_cast<float>(std::cos(angle)) * scale);
      table.push_back(static_cast<float>(std::sin(angle)) * scale);
    }
  }
  stream_.upload(at<float>(places_.angles), table.data(), table.size() * sizeof(float));
}

void CudaKernelSet::rope(const kernels::Rope& p) {
  if (p.rows.count <= 0 || !admits("rope", p.rows.count, 0)) return;
  TRAINYARD_CHECK(2 * std::ssize(p.frequencies) == p.head_dim && p.head_dim <= shapes_.head_dim);
  for (const Sequence& sequence : p.rows.sequences) {
    const int64_t end = sequence.position + sequence.length;
    if (end <= shapes_.rotary_positions) continue;
    stream_.note(Error{ErrorCode::kInternal, "rope: found " + std::to_string(end) +
                                                 " positions of a sequence, wanted at most " +
                                                 std::to_string(shapes_.rotary_positions)});
    return;
  }
  upload_angles(p.frequencies, p.scale);
  const cuda::DeviceRows rows = upload(p.rows);
  if (ready()) note("rope", cuda::rope(p, rows, at<float>(places_.angles), stream_.get()));
}

void CudaKernelSet::gated_forward(const kernels::GatedForward& p) {
  if (p.rows <= 0 || !fits("gated_forward", p.rows, 2 * p.width)) return;
  note("gated_forward", cuda::gated_forward(p, stream_.get()));  // of SiLU; no family has GELU
}

void CudaKernelSet::gated_backward(const kernels::GatedBackward& p) {
  if (p.rows <= 0 || !fits("gated_backward", p.rows, 2 * p.width)) return;
  note("gated_backward", cuda::gated_backward(p, stream_.get()));
}

// What knows sequences.

cuda::DeviceRows CudaKernelSet::upload(const kernels::Rows& rows) {
  cuda::DeviceRows on_device{.count = rows.count,
                             .sequences = at<Sequence>(places_.sequences),
                             .sequences_count = std::ssize(rows.sequences),
                             .sequence_of = at<int32_t>(places_.sequence_of)};
  for (const Sequence& sequence : rows.sequences)
    on_device.longest = std::max(on_device.longest, sequence.length);
  const auto is_same = [](const Sequence& a, const Sequence& b) {
    return a.begin == b.begin && a.length == b.length && a.ordinal == b.ordinal &&
           a.position == b.position;
  };
  if (std::equal(rows.sequences.begin(), rows.sequences.end(), sequences_.begin(), sequences_.end(),
                 is_same)) {
    return on_device;
  }
  if (on_device.sequences_count > shapes_.sequences) {
    stream_.note(Error{ErrorCode::kInternal,
                       "a micro-batch: found " + std::to_string(on_device.sequences_count) +
                           " sequences, wanted at most " + std::to_string(shapes_.sequences)});
    return on_device;
  }
  sequences_.assign(rows.sequences.begin(), rows.sequences.end());
  std::vector<int32_t> sequence_of(static_cast<size_t>(rows.count));
  for (size_t i = 0; i < sequences_.size(); ++i) {
    std::fill_n(sequence_of.begin() + sequences_[i].begin, sequences_[i].length,
                static_cast<int32_t>(i));
  }
  stream_.upload(at<Sequence>(places_.sequences), sequences_.data(),
                 sequences_.size() * sizeof(Sequence));
  stream_.upload(at<int32_t>(places_.sequence_of), sequence_of.data(),
                 sequence_of.size() * sizeof(int32_t));
  return on_device;
}

/// `ids` at a place in scratch, all of them at least `first` and below `end`: no kernel looks at
/// what it indexes.
const int32_t* CudaKernelSet::upload(int64_t place, std::span<const int32_t> ids, int32_t first,
                                     int64_t end, const char* what) {
  const auto wrong =
      std::find_if(ids.begin(), ids.end(), [&](int32_t id) { return id < first || id >= end; });
  if (wrong != ids.end()) {
    stream_.note(Error{ErrorCode::kInvalidData,
                       std::string(what) + " of a micro-batch: found " + std::to_string(*wrong) +
                           ", wanted " + std::to_string(first) + " to " + std::to_string(end - 1) +
                           ", the model's vocabulary"});
  } else {
    stream_.upload(at<int32_t>(place), ids.data(), ids.size_bytes());
  }
  return at<int32_t>(place);
}

namespace {

std::span<const int32_t> ids(const int32_t* first, int64_t count) {
  return {first, static_cast<size_t>(count)};
}

}  // namespace

void CudaKernelSet::dropout_add(const kernels::DropoutAdd& p) {
  if (p.rows.count <= 0 || !admits("dropout_add", p.rows.count, p.width)) return;
  const cuda::DeviceRows rows = upload(p.rows);
  if (ready()) note("dropout_add", cuda::dropout_add(p, rows, stream_.get()));
}

void CudaKernelSet::dropout_backward(const kernels::DropoutBackward& p) {
  dropout_add({.rows = p.rows, .width = p.width, .dropout = p.dropout, .x = p.dy, .y = p.dx});
}

void CudaKernelSet::embedding_forward(const kernels::EmbeddingForward& p) {
  if (p.rows.count <= 0 || !admits("embedding_forward", p.rows.count, p.width)) return;
  kernels::EmbeddingForward of = p;
  const cuda::DeviceRows rows = upload(p.rows);
  of.tokens = upload(places_.tokens, ids(p.tokens, p.rows.count), 0, shapes_.vocab, "a token");
  if (ready()) note("embedding_forward", cuda::embedding_forward(of, rows, stream_.get()));
}

void CudaKernelSet::embedding_backward(const kernels::EmbeddingBackward& p) {
  if (p.rows.count <= 0 || !admits("embedding_backward", p.rows.count, p.width)) return;
  kernels::EmbeddingBackward of = p;
  const cuda::DeviceRows rows = upload(p.rows);
  of.held.count = std::min(p.held.count, shapes_.vocab - p.held.first);
  of.tokens = upload(places_.tokens, ids(p.tokens, p.rows.count), 0, shapes_.vocab, "a token");
  if (!ready()) return;
  note("embedding_backward", cuda::embedding_backward(of, rows, shapes_.positions,
                                                      at<int32_t>(places_.lists), stream_.get()));
}

namespace {

/// A query-key product of the causal half, as the processor's set counts it.
template <typename P>
int64_t attention_unit(const P& p) {
  int64_t unit = 0;
  for (const Sequence& sequence : p.rows.sequences)
    unit += kernels::attention_pairs(sequence.length, p.window) * p.heads * p.head_dim;
  return unit;
}

}  // namespace

/// Only of sequences as training has them: a plan takes seconds, and a sample has every length.
template <typename P>
bool CudaKernelSet::is_for_library(const P& p, const cuda::DeviceRows& rows) {
  if (attention_ == nullptr || rows.longest != shapes_.library_attention) return false;
  const cuda::AttentionProblem problem = cuda::problem_of(p, rows);
  if (problem.needs_own()) return false;
  (void)attention_->prepare(problem);  // at its first call alone
  return attention_->uses_library(problem);
}

void CudaKernelSet::attention_forward(const kernels::AttentionForward& p) {
  counters_.attention_flops += 2 * attention_unit(p);
  if (p.rows.count <= 0 || !admits("attention_forward", p.rows.count, p.heads * p.head_dim)) return;
  const cuda::DeviceRows rows = upload(p.rows);
  if (!ready()) return;
  note("attention_forward",
       is_for_library(p, rows)
           ? attention_->forward(p, rows, at<std::byte>(places_.attention), stream_.get())
           : cuda::attention_forward(p, rows, stream_.get()));
}

void CudaKernelSet::attention_backward(const kernels::AttentionBackward& p) {
  counters_.attention_flops += 4 * attention_unit(p);
  const int64_t width = p.heads * p.head_dim;
  if (p.rows.count <= 0 || !admits("attention_backward", p.rows.count, width)) return;
  const cuda::DeviceRows rows = upload(p.rows);
  if (!ready()) return;
  note("attention_backward",
       is_for_library(p, rows)
           ? attention_->backward(p, rows, at<std::byte>(places_.attention), stream_.get())
           : cuda::attention_backward(p, rows, at<float>(places_.attention), stream_.get()));
}

void CudaKernelSet::cross_entropy(const kernels::CrossEntropy& p) {
  if (p.rows <= 0 || !admits("cross_entropy", p.rows, 0)) return;
  kernels::CrossEntropy of = p;
  const bool is_part = p.part.statistics != nullptr;
  of.targets = upload(places_.targets, ids(p.targets, p.rows), -1,
                      is_part ? shapes_.classes : p.vocab, "a target");
  if (!is_part && shapes_.pieces > 0 && !p.piece_ends.empty()) {
    TRAINYARD_CHECK(std::ssize(p.piece_ends) <= shapes_.pieces);
    of.part.pieces = std::ssize(p.piece_ends);
    of.part.statistics = at<float>(places_.statistics);
    if (ready()) {
      note("vocabulary_statistics",
           cuda::vocabulary_statistics({.rows = p.rows,
                                        .vocab = p.vocab,
                                        .padded_vocab = p.padded_vocab,
                                        .piece_ends = p.piece_ends,
                                        .logits = static_cast<const float*>(p.logits.data),
                                        .targets = of.targets,
                                        .part = of.part,
                                        .statistics = at<float>(places_.statistics)},
                                       stream_.get()));
    }
  }
  if (ready()) note("cross_entropy", cuda::cross_entropy(of, stream_.get()));
}

void CudaKernelSet::vocabulary_statistics(const kernels::VocabularyStatistics& p) {
  if (p.rows <= 0 || !admits("vocabulary_statistics", p.rows, 0)) return;
  kernels::VocabularyStatistics of = p;
  of.targets = upload(places_.targets, ids(p.targets, p.rows), -1, shapes_.classes, "a target");
  if (ready()) note("vocabulary_statistics", cuda::vocabulary_statistics(of, stream_.get()));
}

// The update.

void CudaKernelSet::sum_of_squares(const kernels::SumOfSquares& p) {
  if (p.count <= 0 || !ready()) return;
  note("sum_of_squares", cuda::sum_of_squares(p, stream_.get()));
}

void CudaKernelSet::adamw(std::span<const kernels::AdamW> tensors) {
  if (tensors.empty() || !ready()) return;
  note("adamw", cuda::adamw(tensors, stream_.get()));
}

void CudaKernelSet::cast_to_bf16(const float* x, uint16_t* y, int64_t count) {
  if (count <= 0 || !ready()) return;
  note("cast", cuda::cast(x, {y, DType::kBFloat16}, count, stream_.get()));
}

void CudaKernelSet::clear(void* data, int64_t bytes) {
  if (bytes <= 0 || !ready()) return;
  note("clear", cudaMemsetAsync(data, 0, static_cast<size_t>(bytes), stream_.get()));
}

void CudaKernelSet::copy(const void* from, void* to, int64_t bytes) {
  if (bytes <= 0 || !ready()) return;
  note("copy", cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice,
                               stream_.get()));
}

void CudaKernelSet::copy(const kernels::HeadParts& p) {
  if (p.rows <= 0 || !ready()) return;
  note("copy_head_parts", cuda::copy_head_parts(p, stream_.get()));
}

void CudaKernelSet::accumulate(const kernels::GradientSum& x, const kernels::GradientSum& sums,
                               int64_t count, bool overwrite) {
  if (count <= 0 || !ready()) return;
  if (overwrite) {
    const auto bytes = static_cast<size_t>(count * size_of(sums.type()));
    note("accumulate",
         cudaMemcpyAsync(sums.data(), x.data(), bytes, cudaMemcpyDeviceToDevice, stream_.get()));
  } else {
    note("accumulate", cuda::add_sums(x, sums, count, stream_.get()));
  }
}

}  // namespace trainyard::engine

#include "kernels/cpu/cpu_kernel_set.h"

#include <cstring>
#include <initializer_list>
#include <string>
#include <unistd.h>

#include "common/base/check.h"
#include "kernels/cpu/op_table.h"
#include "kernels/cpu/thread_pool.h"

namespace trainyard::kernels {
namespace {

constexpr int kMaxThreads = 1024;

/// 1 MiB where the system does not say.
int64_t second_level_cache() {
  const long bytes = ::sysconf(_SC_LEVEL2_CACHE_SIZE);
  return bytes > 0 ? bytes : 1 << 20;
}

class CpuKernelSet final : public KernelSet {
 public:
  CpuKernelSet(const OpTable& table, int threads) : table_(table), pool_(threads) {
    context_.pool = &pool_;
    context_.threads = threads;
    context_.l2_bytes = second_level_cache();
  }

  int64_t scratch_bytes() const override { return pool_.threads() * kScratchBytesPerThread; }
  void set_scratch(std::span<std::byte> scratch) override {
    TRAINYARD_CHECK(static_cast<int64_t>(scratch.size()) >= scratch_bytes());
    TRAINYARD_CHECK(reinterpret_cast<uintptr_t>(scratch.data()) % 64 == 0);
    context_.scratch = scratch.data();
  }

  void gemm(const GemmParams& p) override {
    check_gemm(p);
    counters_.gemm_flops += 2 * p.m * p.n * p.k;
    run(table_.gemm, p);
    if (p.squares.limbs == nullptr) return;
    sum_of_squares(
        {.count = p.m * p.n,
         .gradient = {.sums = static_cast<const int64_t*>(p.c), .scale = p.squares.scale},
         .limbs = p.squares.limbs,
         .overflow = p.squares.overflow});
  }
  void layer_norm_forward(const LayerNormForward& p) override {
    check_fp32({p.x});
    run(table_.layer_norm_forward, p);
  }
  void layer_norm_backward_input(const LayerNormBackwardInput& p) override {
    check_fp32({p.dy, p.x, p.dx});
    run(table_.layer_norm_backward_input, p);
  }
  void layer_norm_backward_weight(const LayerNormBackwardWeight& p) override {
    check_fp32({p.dy, p.x});
    check_grains(p.grains, p.rows);
    run(table_.layer_norm_backward_weight, p);
  }
  void head_norm_forward(const HeadNormForward& p) override {
    check_alike(p.x, p.y);
    run(table_.head_norm_forward, p);
  }
  void head_norm_backward_input(const HeadNormBackwardInput& p) override {
    check_alike(p.x, p.dy);
    check_alike(p.x, p.dx);
    run(table_.head_norm_backward_input, p);
  }
  void head_norm_backward_weight(const HeadNormBackwardWeight& p) override {
    check_alike(p.x, p.dy);
    check_grains(p.grains, p.rows);
    run(table_.head_norm_backward_weight, p);
  }
  void rope(const Rope& p) override {
    TRAINYARD_CHECK(p.head_dim >= 2 && p.head_dim <= kMaxHeadDim);
    TRAINYARD_CHECK(static_cast<int64_t>(p.frequencies.size()) * 2 == p.head_dim);
    check_alike(p.x, p.y);
    run(table_.rope, p);
  }
  void bias_backward(const BiasBackward& p) override {
    check_grains(p.grains, p.rows);
    run(table_.bias_backward, p);
  }
  void gelu_forward(const GeluForward& p) override {
    check_alike(p.x, p.y);
    run(table_.gelu_forward, p);
  }
  void gelu_backward(const GeluBackward& p) override {
    check_fp32({p.dy});
    check_alike(p.x, p.dx);
    run(table_.gelu_backward, p);
  }
  void gated_forward(const GatedForward& p) override {
    check_alike(p.x, p.y);
    run(table_.gated_forward, p);
  }
  void gated_backward(const GatedBackward& p) override {
    check_fp32({p.dy});
    check_alike(p.x, p.dx);
    run(table_.gated_backward, p);
  }
  void dropout_add(const DropoutAdd& p) override {
    check_fp32({p.x, p.residual, p.y});
    run(table_.dropout_add, p);
  }
  void dropout_backward(const DropoutBackward& p) override {
    check_fp32({p.dy});
    run(table_.dropout_backward, p);
  }
  void embedding_forward(const EmbeddingForward& p) override {
    check_fp32({p.y});
    if (p.wte.data != nullptr && p.wpe.data != nullptr) check_alike(p.wte, p.wpe);
    run(table_.embedding_forward, p);
  }
  void embedding_backward(const EmbeddingBackward& p) override {
    check_fp32({p.dy});
    run(table_.embedding_backward, p);
  }
  void attention_forward(const AttentionForward& p) override {
    check_alike(p.qkv, p.out);
    counters_.attention_flops += 2 * attention_unit(p);
    run(table_.attention_forward, p);
  }
  void attention_backward(const AttentionBackward& p) override {
    check_fp32({p.d_out});
    check_alike(p.qkv, p.out);
    check_alike(p.qkv, p.d_qkv);
    counters_.attention_flops += 4 * attention_unit(p);
    run(table_.attention_backward, p);
  }
  void cross_entropy(const CrossEntropy& p) override { run(table_.cross_entropy, p); }
  void vocabulary_statistics(const VocabularyStatistics& p) override {
    TRAINYARD_CHECK(std::ssize(p.piece_ends) <= p.part.pieces);
    run(table_.vocabulary_statistics, p);
  }
  void round_exact(const RoundExact& p) override {
    TRAINYARD_CHECK(p.sums.exact != nullptr);
    run(table_.round_exact, p);
  }
  void sum_of_squares(const SumOfSquares& p) override {
    TRAINYARD_CHECK(p.gradient.rounded == nullptr || p.rounded_scale == 1);
    run(table_.sum_of_squares, p);
  }
  void adamw(std::span<const AdamW> tensors) override {
    for (const AdamW& p : tensors)
      run(table_.adamw, p);
  }
  void cast_to_bf16(const float* x, uint16_t* y, int64_t count) override {
    const CanonicalFloatMode mode;
    table_.cast_to_bf16(context_, x, y, count);
  }
  void clear(void* data, int64_t bytes) override { table_.clear(context_, data, bytes); }
  void copy(const void* from, void* to, int64_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
  }
  void accumulate(const GradientSum& x, const GradientSum& sums, int64_t count,
                  bool overwrite) override {
    TRAINYARD_CHECK(x.sum == nullptr && sums.sum == nullptr);
    table_.accumulate(context_, x.exact, sums.exact, count, overwrite);
  }

  KernelCounters counters() const override { return counters_; }

 private:
  template <class P>
  static int64_t attention_unit(const P& p) {
    int64_t pairs = 0;
    const int64_t pieces =
        p.keys == nullptr ? 1 : std::ssize(p.rows.sequences) / std::ssize(p.keys->samples);
    for (int64_t i = 0; i < std::ssize(p.rows.sequences); ++i) {
      const Sequence& sequence = p.rows.sequences[static_cast<size_t>(i)];
      if (p.keys != nullptr) {
        // All that the sequence sees counts in the call with its own block.
        const Sequence& whole = p.keys->samples[static_cast<size_t>(i / pieces)];
        const int64_t first = whole.position + p.keys->index * (whole.length / p.keys->count);
        if (sequence.position != first) continue;
      }
      pairs += attention_pairs(sequence.position + sequence.length, p.window) -
               attention_pairs(sequence.position, p.window);
    }
    return pairs * p.heads * p.head_dim;
  }

  /// The CPU's residual stream, and its gradients of what is not a product's output.
  static void check_fp32(std::initializer_list<ConstElements> all) {
    for (const ConstElements& elements : all)
      TRAINYARD_CHECK(elements.type == DType::kFloat32);
  }
  static void check_alike(const ConstElements& a, const ConstElements& b) {
    TRAINYARD_CHECK(a.type == b.type);
  }

  /// They cover all rows.
  static void check_grains(const Grains& grains, int64_t rows) {
    if (grains.sequences.empty()) return;
    const Sequence& last = grains.sequences.back();
    TRAINYARD_CHECK(grains.tokens >= 1 && last.begin + last.length == rows);
  }

  static void check_gemm(const GemmParams& p) {
    TRAINYARD_CHECK(p.input == DType::kFloat32 || p.input == DType::kBFloat16);
    TRAINYARD_CHECK(p.output != GemmOutput::kAccumulate);
    TRAINYARD_CHECK(p.output != GemmOutput::kStore || p.chain_ends.size() <= 1);
    TRAINYARD_CHECK(p.chain_ends.empty() || p.chain_ends.back() == p.k);
    TRAINYARD_CHECK(p.grains.sequences.empty() ||
                    (p.output == GemmOutput::kExactAccumulate && p.chain_ends.empty()));
    check_grains(p.grains, p.k);
    TRAINYARD_CHECK(p.output != GemmOutput::kExactAccumulate || p.bias == nullptr);
    TRAINYARD_CHECK(p.output == GemmOutput::kExactAccumulate || !p.overwrite);
    TRAINYARD_CHECK(p.squares.limbs == nullptr ||
                    (p.output == GemmOutput::kExactAccumulate && p.ldc == p.n));
  }

  template <class P>
  void run(void (*kernel)(const CpuContext&, const P&), const P& p) {
    TRAINYARD_CHECK(context_.scratch != nullptr);
    const CanonicalFloatMode mode;
    kernel(context_, p);
  }

  const OpTable& table_;
  ThreadPool pool_;
  CpuContext context_;
  KernelCounters counters_;
};

}  // namespace

void raise(OverflowFlag* flag) { __atomic_store_n(flag, 1, __ATOMIC_RELAXED); }

const OpTable& op_table_of(Isa isa) {
  switch (isa) {
    case Isa::kGeneric:
      return isa_generic::op_table();
    case Isa::kAvx2:
      return isa_avx2::op_table();
    case Isa::kAvx512:
      return isa_avx512::op_table();
    case Isa::kAvx512Bf16:
      return isa_avx512_bf16::op_table();
    case Isa::kAmx:
      return isa_amx::op_table();
  }
  return isa_generic::op_table();
}

Result<std::unique_ptr<KernelSet>> make_cpu_kernel_set(Isa isa, int threads,
                                                       const ProcessorFeatures& features) {
  if (threads < 1 || threads > kMaxThreads) {
    return Error{ErrorCode::kInvalidConfig, "threads of the CPU kernels: found " +
                                                std::to_string(threads) + ", wanted 1.." +
                                                std::to_string(kMaxThreads)};
  }
  if (!is_available(isa, features)) {
    return Error{ErrorCode::kUnavailable, "instruction set " + std::string(name_of(isa)) +
                                              " is not offered by this processor; use " +
                                              std::string(name_of(best_isa(features))) +
                                              " or slower"};
  }
  return std::make_unique<CpuKernelSet>(op_table_of(isa), threads);
}

}  // namespace trainyard::kernels

#include "kernels/cpu/cpu_kernel_set.h"

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
  }
  void layer_norm_forward(const LayerNormForward& p) override { run(table_.layer_norm_forward, p); }
  void layer_norm_backward_input(const LayerNormBackwardInput& p) override {
    run(table_.layer_norm_backward_input, p);
  }
  void layer_norm_backward_weight(const LayerNormBackwardWeight& p) override {
    check_grains(p.grains, p.rows);
    run(table_.layer_norm_backward_weight, p);
  }
  void bias_backward(const BiasBackward& p) override {
    check_grains(p.grains, p.rows);
    run(table_.bias_backward, p);
  }
  void gelu_forward(const GeluForward& p) override { run(table_.gelu_forward, p); }
  void gelu_backward(const GeluBackward& p) override { run(table_.gelu_backward, p); }
  void dropout_add(const DropoutAdd& p) override { run(table_.dropout_add, p); }
  void dropout_backward(const DropoutBackward& p) override { run(table_.dropout_backward, p); }
  void embedding_forward(const EmbeddingForward& p) override { run(table_.embedding_forward, p); }
  void embedding_backward(const EmbeddingBackward& p) override {
    run(table_.embedding_backward, p);
  }
  void attention_forward(const AttentionForward& p) override {
    counters_.attention_flops += 2 * attention_unit(p);
    run(table_.attention_forward, p);
  }
  void attention_backward(const AttentionBackward& p) override {
    counters_.attention_flops += 4 * attention_unit(p);
    run(table_.attention_backward, p);
  }
  void cross_entropy(const CrossEntropy& p) override { run(table_.cross_entropy, p); }
  void sum_of_squares(const SumOfSquares& p) override { run(table_.sum_of_squares, p); }
  void adamw(const AdamW& p) override { run(table_.adamw, p); }
  void cast_to_bf16(const float* x, uint16_t* y, int64_t count) override {
    const CanonicalFloatMode mode;
    table_.cast_to_bf16(context_, x, y, count);
  }
  void clear(void* data, int64_t bytes) override { table_.clear(context_, data, bytes); }
  void accumulate(const int64_t* x, int64_t* sums, int64_t count, bool overwrite) override {
    table_.accumulate(context_, x, sums, count, overwrite);
  }

  KernelCounters counters() const override { return counters_; }

 private:
  template <class P>
  static int64_t attention_unit(const P& p) {
    int64_t pairs = 0;
    for (const Sequence& sequence : p.rows.sequences)
      pairs += sequence.length * sequence.length;
    return pairs * p.heads * p.head_dim;
  }

  /// They cover all rows.
  static void check_grains(const Grains& grains, int64_t rows) {
    if (grains.sequences.empty()) return;
    const Sequence& last = grains.sequences.back();
    TRAINYARD_CHECK(grains.tokens >= 1 && last.begin + last.length == rows);
  }

  static void check_gemm(const GemmParams& p) {
    TRAINYARD_CHECK(p.input == DType::kFloat32 || p.input == DType::kBFloat16);
    TRAINYARD_CHECK(p.output != GemmOutput::kStore || p.chain_ends.size() <= 1);
    TRAINYARD_CHECK(p.chain_ends.empty() || p.chain_ends.back() == p.k);
    TRAINYARD_CHECK(p.grains.sequences.empty() ||
                    (p.output == GemmOutput::kExactAccumulate && p.chain_ends.empty()));
    check_grains(p.grains, p.k);
    TRAINYARD_CHECK(p.output != GemmOutput::kExactAccumulate || p.bias == nullptr);
    TRAINYARD_CHECK(p.output == GemmOutput::kExactAccumulate || !p.overwrite);
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

// C = op(A) op(B) over tasks of C: each packs its own block of B (which stays in the L2 cache of
// its core) and walks the rows of A over it. Chains are never split but where a block of the summed
// dimension ends inside one; its accumulators then wait in fp32, which changes no bit.

#include "kernels/cpu/exact.h"
#include "kernels/cpu/gemm_blocks.h"
#include "kernels/cpu/gemm_core.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/parallel.h"

namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE {
namespace {

// Words that are packed at once. Of B, most of a core's L2; of A 256 KiB, or more where there is
// more: every group of A's rows costs a reading of B.
struct Room {
  int64_t a, b;
};
constexpr Room kUsual = {.a = 64 * 1024, .b = 160 * 1024};   // an L2 of 1 MiB: Zen 4, Zen 5
constexpr Room kLarge = {.a = 192 * 1024, .b = 320 * 1024};  // 2 MiB: Intel's since 2023
constexpr int64_t kLargeCacheBytes = 2 << 20;
// Where A has to be packed too, doing that once is worth more than B in L2: B then lies in L3, and
// one of its panels and a group of A's rows share L2.
constexpr int64_t kPackBWideWords = 1024 * 1024;
// Words of the summed dimension that are taken at once: all, or blocks of about kBlockWords.
constexpr int64_t kWholeWords = 1536;
constexpr int64_t kBlockWords = 512;
// Where the summed dimension takes several blocks, the state of a task's C waits in scratch.
constexpr int64_t kSplitRows = 480;  // a multiple of every kTileRows
constexpr int64_t kSplitColumns = 288;

/// int64 elements of C that no cache near a core would hold until they are read: 4 MiB.
constexpr int64_t kStreamedElements = 512 * 1024;

struct Scratch {
  uint32_t b[kPackBWideWords];
  uint32_t a[kLarge.a + kTileRows * kWholeWords];
  float carry[kSplitRows * kSplitColumns];
  int64_t totals[kSplitRows * kSplitColumns];
};
static_assert(sizeof(Scratch) <= kScratchBytesPerThread);
static_assert(kBlockWords * kSplitColumns <= kUsual.b);
static_assert(kBlockWords % BFloat16Input::kSumWords == 0);
static_assert(kSplitRows % kTileRows == 0 && kSplitColumns % kTileColumns == 0);

// Finished chains of a tile that wait to be added up together: their sums then pass through memory
// once for all of them. Up to 16 KiB of the first-level cache.
#if TRAINYARD_CPU_ISA == TRAINYARD_ISA_AMX
constexpr int kWaitingChains = 4;  // of 4 KiB
#else
constexpr int kWaitingChains = 8;
#endif

template <class Input>
class Gemm {
 public:
  using Element = typename Input::Element;

  Gemm(const GemmParams& p, int64_t l2_bytes)
      : p_(p),
        room_(l2_bytes >= kLargeCacheBytes ? kLarge : kUsual),
        chains_(p.k, p.chain_ends, p.grains) {
    const Block block = next_block<Input>(chains_, p.k, kWholeWords, 0, chains_.first());
    limit_ = block.last ? kWholeWords : kBlockWords;
    direct_a_ = Input::kReadsRows && !p.transpose_a;
    streams_ =
        p.output == GemmOutput::kExactAccumulate && p.overwrite && p.m * p.n >= kStreamedElements;
    columns_per_task_ = kSplitColumns;
    rows_per_task_ = kSplitRows;
    if (block.last) {
      const int64_t words = block.words > 0 ? block.words : 1;
      const int64_t room = direct_a_ ? room_.b : kPackBWideWords;
      const int64_t fitting = room / words / kTileColumns * kTileColumns;
      columns_per_task_ = fitting < kTileColumns ? kTileColumns : fitting;
      rows_per_task_ = p.m;
    }
  }

  void run(const CpuContext& context) {
    balance(context.threads);
    const int64_t row_tasks = ceil_div(p_.m, rows_per_task_);
    const int64_t column_tasks = ceil_div(p_.n, columns_per_task_);
    parallel_for(context, row_tasks * column_tasks, [&](int64_t task, int thread) {
      run_task(task % row_tasks, task / row_tasks, *scratch_of<Scratch>(context, thread));
    });
  }

 private:
  /// State of one task.
  struct Task {
    int64_t row0, rows, column0, columns;
    Scratch* scratch;
    FixedPoint fixed;
    Prefetcher next_rows;  ///< of A
  };

  /// Of an element's whole sum.
  int64_t partials() const {
    return p_.output == GemmOutput::kExactAccumulate ? p_.partials : chains_.count();
  }

  /// Makes the tasks equal in size and, where C is large enough, a multiple of the threads.
  void balance(int threads) {
    int64_t column_tasks = ceil_div(p_.n, columns_per_task_);
    int64_t row_tasks = ceil_div(p_.m, rows_per_task_);
    if (threads > 1 && (row_tasks * column_tasks) % threads != 0 &&
        row_tasks * column_tasks < int64_t{8} * threads) {
      const int64_t wanted = ceil_div(column_tasks, threads) * threads;
      // Tasks of other columns pack the same rows of A.
      if (direct_a_ && p_.n >= wanted * kTileColumns) {
        column_tasks = wanted;
      } else {
        row_tasks = ceil_div(row_tasks, threads) * threads;
      }
    }
    columns_per_task_ = round_up(ceil_div(p_.n, column_tasks), kTileColumns);
    rows_per_task_ = round_up(ceil_div(p_.m, row_tasks), kTileRows);
  }

  void run_task(int64_t row_task, int64_t column_task, Scratch& scratch) {
    Task task{row_task * rows_per_task_,
              0,
              column_task * columns_per_task_,
              0,
              &scratch,
              FixedPoint(p_.quantum_log2, fitting_log2(partials())),
              Prefetcher()};
    task.rows = smaller(rows_per_task_, p_.m - task.row0);
    task.columns = smaller(columns_per_task_, p_.n - task.column0);
    if (task.rows <= 0 || task.columns <= 0) return;
    const MatrixUnit unit;
    int64_t begin = 0;
    Chain chain = chains_.first();
    while (true) {
      const Block block = next_block<Input>(chains_, p_.k, limit_, begin, chain);
      run_block(task, block);
      if (block.last) break;
      begin = block.end;
      while (chain.end <= begin)
        chain = chains_.after(chain);
    }
    if (streams_) finish_streams();
    task.fixed.report(p_.overflow);
  }

  /// Calls f(begin, length, first word) for every stretch of the block that lies in one chain.
  template <class F>
  __attribute__((always_inline)) void for_each_segment(const Block& block, const F& f) const {
    int64_t k = block.begin;
    Chain chain = block.first_chain;
    int64_t word = 0;
    while (k < block.end) {
      const int64_t end = smaller(chain.end, block.end);
      if (end > k) f(k, end - k, word);
      word += words_of<Input>(end - k);
      k = end;
      chain = chains_.after(chain);
    }
  }

  void run_block(Task& task, const Block& block) const {
    const auto* b = static_cast<const Element*>(p_.b);
    for_each_segment(block, [&](int64_t k, int64_t length, int64_t word) {
      const Element* from =
          p_.transpose_b ? b + task.column0 * p_.ldb + k : b + k * p_.ldb + task.column0;
      pack_b<Input>(from, p_.ldb, p_.transpose_b, length, task.columns, block.words, word,
                    task.scratch->b);
    });
    const auto* a = static_cast<const Element*>(p_.a);
    if (direct_a_) {
      constexpr auto kBytes = static_cast<int64_t>(sizeof(Element));
      for (int64_t m = 0; m < task.rows; m += kTileRows) {
        const Element* from = a + (task.row0 + m) * p_.lda + block.begin;
        run_row_panel(task, block, m, {reinterpret_cast<const char*>(from), p_.lda * kBytes, 4});
      }
      return;
    }
    const int64_t words = block.words > 0 ? block.words : 1;
    const int64_t group = larger(room_.a / words / kTileRows, 1) * kTileRows;
    for (int64_t m0 = 0; m0 < task.rows; m0 += group) {
      const int64_t rows = smaller(group, task.rows - m0);
      for_each_segment(block, [&](int64_t k, int64_t length, int64_t word) {
        const int64_t m = task.row0 + m0;
        const Element* from = p_.transpose_a ? a + k * p_.lda + m : a + m * p_.lda + k;
        pack_a<Input>(from, p_.lda, p_.transpose_a, length, rows, block.words, word,
                      task.scratch->a);
      });
      task.next_rows = next_group(task, block, m0 + group, group);
      for (int64_t n = 0; n < task.columns; n += kTileColumns) {
        for (int64_t m = 0; m < rows; m += kTileRows) {
          const uint32_t* panel = task.scratch->a + m * block.words;
          run_one_tile(task, block, m0 + m, n, static_cast<int>(smaller(kTileRows, rows - m)),
                       packed_tile<Input>(panel, block.words, p_.transpose_a));
        }
      }
    }
  }

  /// What the packing of the group of rows from m on will read, spread over the tiles of one group.
  Prefetcher next_group(const Task& task, const Block& block, int64_t m, int64_t group) const {
    const int64_t rows = smaller(group, task.rows - m);
    if (!p_.transpose_a || rows <= 0) return {};
    constexpr auto kBytes = static_cast<int64_t>(sizeof(Element));
    const int64_t tiles = group / kTileRows * ceil_div(task.columns, kTileColumns);
    const auto* a = static_cast<const Element*>(p_.a) + block.begin * p_.lda + task.row0 + m;
    return {a, p_.lda * kBytes, block.end - block.begin, rows * kBytes, tiles};
  }

  void run_row_panel(Task& task, const Block& block, int64_t m, const TileA& a) const {
    const int rows = static_cast<int>(smaller(kTileRows, task.rows - m));
    for (int64_t n = 0; n < task.columns; n += kTileColumns) {
      run_one_tile(task, block, m, n, rows, a);
    }
  }

  /// Finished chains of one tile, and what of the block's chains is added up already.
  struct Partials {
    alignas(64) float tiles[kWaitingChains][kTileRows * kTileColumns];
    alignas(64) int64_t buffers[2][kTileRows * kTileColumns];
    int64_t* sums = buffers[0];
    int64_t* other = buffers[1];
    int waiting = 0;      ///< tiles that are finished; the next one is in progress
    bool summed = false;  ///< sums hold something
  };

  /// One register tile of C through all chains of the block.
  void run_one_tile(Task& task, const Block& block, int64_t m, int64_t n, int rows,
                    const TileA& a) const {
    Partials partials;
    const int64_t columns = smaller(kTileColumns, task.columns - n);
    const int vectors = panel_vectors(n, task.columns);
    const TileFunction function = tile_function<Input>(rows, vectors);
    const uint32_t* panel = task.scratch->b + n * block.words;
    const int64_t stride = int64_t{vectors} * kLanes;
    const bool exact = p_.output != GemmOutput::kStore;
    float* carry = task.scratch->carry + m * kSplitColumns + n;
    task.next_rows.step();
    if (p_.output != GemmOutput::kExactAccumulate) {
      if (block.last) prefetch_output(task, m, n, rows, columns);
    } else if (!overwrites(block)) {
      prefetch_tile<int64_t>(task, m, n, rows, columns);
    }
    if (block.resumes) {
      copy_rows(carry, kSplitColumns, partials.tiles[0], kTileColumns, rows, vectors);
    }

    int64_t k = block.begin;
    Chain chain = block.first_chain;
    int64_t word = 0;
    bool resume = block.resumes;
    do {
      const int64_t end = smaller(chain.end, block.end);
      const int64_t words = words_of<Input>(end - k);
      const TileA from{a.base + word * a.word_bytes, a.row_bytes, a.word_bytes};
      function(from, {panel + word * stride, stride}, words, resume,
               partials.tiles[partials.waiting]);
      const bool closed = end == chain.end;
      if (closed && exact && ++partials.waiting == kWaitingChains) {
        add_up(task.fixed, partials, rows, vectors, columns);
      }
      resume = false;
      word += words;
      k = end;
      chain = chains_.after(chain);
    } while (k < block.end);

    if (block.open) {
      copy_rows(partials.tiles[partials.waiting], kTileColumns, carry, kSplitColumns, rows,
                vectors);
    }
    if (!exact) {
      if (block.last) store_tile(task, m, n, rows, columns, partials.tiles[0]);
      return;
    }
    if (partials.waiting > 0) add_up(task.fixed, partials, rows, vectors, columns);
    if (p_.output == GemmOutput::kExactAccumulate) {
      if (partials.summed) accumulate(task, block, m, n, rows, columns, partials.sums);
    } else {
      round_or_keep(task, block, m, n, rows, columns, partials.summed, partials.sums);
    }
  }

  static void copy_rows(const float* from, int64_t from_stride, float* to, int64_t to_stride,
                        int rows, int vectors) {
    for (int i = 0; i < rows; ++i) {
      for (int v = 0; v < vectors; ++v) {
        store(to + i * to_stride + v * kLanes, load(from + i * from_stride + v * kLanes));
      }
    }
  }

  /// sums = or += fixed(each waiting tile). Partials that do not fit are rare: all are taken as if
  /// they did while the largest is looked for, and where that one does not, once more with care.
  static void add_up(FixedPoint& fixed, Partials& p, int rows, int vectors, int64_t columns) {
    U32x16 largest = broadcast_u32(0);
    if (p.waiting == kWaitingChains && vectors == kMaxVectors) {
      // The usual case: whole rows lie one after the other, and the compiler knows the count.
      for (int at = 0; at < rows * kTileColumns; at += kLanes) {
        const I64x16 before = p.summed ? load_i64(p.sums + at) : zero_i64();
        store_i64(p.other + at, before + add_fitting(fixed, p, kWaitingChains, at, largest));
      }
    } else {
      for (int i = 0; i < rows; ++i) {
        for (int v = 0; v < vectors; ++v) {
          const int at = i * kTileColumns + v * kLanes;
          const I64x16 before = p.summed ? load_i64(p.sums + at) : zero_i64();
          store_i64(p.other + at, before + add_fitting(fixed, p, p.waiting, at, largest));
        }
      }
    }
    if (!fixed.all_fit(largest)) {
      for (int i = 0; i < rows; ++i) {
        for (int v = 0; v < vectors; ++v) {
          const int at = i * kTileColumns + v * kLanes;
          I64x16 x = p.summed ? load_i64(p.sums + at) : zero_i64();
          for (int t = 0; t < p.waiting; ++t)
            x = x + fixed.convert(load(p.tiles[t] + at), clamp_lanes(columns - v * kLanes));
          store_i64(p.other + at, x);
        }
      }
    }
    int64_t* const sums = p.sums;
    p.sums = p.other;
    p.other = sums;
    p.waiting = 0;
    p.summed = true;
  }

  /// The waiting tiles' vectors at `at` as fixed point, added up; `largest` takes in their absolute
  /// bits. Two of everything, so that neither chain of dependent operations is waited for.
  __attribute__((always_inline)) static I64x16 add_fitting(const FixedPoint& fixed,
                                                           const Partials& p, int waiting, int at,
                                                           U32x16& largest) {
    I64x16 even = zero_i64();
    I64x16 odd = zero_i64();
    U32x16 largest_odd = broadcast_u32(0);
    int t = 0;
#pragma GCC unroll 4
    for (; t + 2 <= waiting; t += 2) {
      const F32x16 a = load(p.tiles[t] + at);
      const F32x16 b = load(p.tiles[t + 1] + at);
      largest = max_unsigned(largest, as_bits(abs(a)));
      largest_odd = max_unsigned(largest_odd, as_bits(abs(b)));
      even = even + fixed.convert_fitting(a);
      odd = odd + fixed.convert_fitting(b);
    }
    if (t < waiting) {
      const F32x16 a = load(p.tiles[t] + at);
      largest = max_unsigned(largest, as_bits(abs(a)));
      even = even + fixed.convert_fitting(a);
    }
    largest = max_unsigned(largest, largest_odd);
    return even + odd;
  }

  /// Calls a tile of C into the cache while the chains run: its rows are far apart.
  template <class Out>
  void prefetch_tile(const Task& task, int64_t m, int64_t n, int rows, int64_t columns) const {
    constexpr int64_t kLine = 64 / sizeof(Out);
    for (int i = 0; i < rows; ++i) {
      const auto* row =
          static_cast<const Out*>(p_.c) + (task.row0 + m + i) * p_.ldc + task.column0 + n;
      for (int64_t j = 0; j < columns; j += kLine)
        __builtin_prefetch(row + j, 1);
    }
  }
  void prefetch_output(const Task& task, int64_t m, int64_t n, int rows, int64_t columns) const {
    if (p_.c_type == DType::kBFloat16) {
      prefetch_tile<uint16_t>(task, m, n, rows, columns);
    } else {
      prefetch_tile<float>(task, m, n, rows, columns);
    }
  }

  /// No chain ended before this block: it is the first to write to its tiles of C.
  bool overwrites(const Block& block) const { return p_.overwrite && block.first_chain.begin == 0; }

  /// C += sums, or = where nothing was there before this product.
  void accumulate(const Task& task, const Block& block, int64_t m, int64_t n, int rows,
                  int64_t columns, const int64_t* sums) const {
    const bool first = overwrites(block);
    for (int i = 0; i < rows; ++i) {
      auto* row = static_cast<int64_t*>(p_.c) + (task.row0 + m + i) * p_.ldc + task.column0 + n;
      for (int64_t j = 0; j < columns; j += kLanes) {
        const I64x16 x = load_i64(sums + i * kTileColumns + j);
        if (first && streams_ && columns - j >= kLanes && is_line(row + j)) {
          stream_i64(row + j, x);
        } else if (first) {
          store_to(row + j, x, clamp_lanes(columns - j));
        } else {
          add_to(row + j, x, clamp_lanes(columns - j));
        }
      }
    }
  }

  static bool is_line(const int64_t* p) { return reinterpret_cast<uintptr_t>(p) % 64 == 0; }

  /// kExactRound: adds the block's sums to those of earlier blocks; rounds after the last.
  void round_or_keep(const Task& task, const Block& block, int64_t m, int64_t n, int rows,
                     int64_t columns, bool summed, const int64_t* sums) const {
    alignas(64) float rounded[kTileRows * kTileColumns];
    const F32x16 quantum = broadcast(power_of_two(-p_.quantum_log2));
    for (int i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; j += kLanes) {
        int64_t* total = task.scratch->totals + (m + i) * kSplitColumns + n + j;
        I64x16 x = summed ? load_i64(sums + i * kTileColumns + j) : zero_i64();
        if (!block.first) x = x + load_i64(total);
        if (!block.last) {
          store_i64(total, x);
        } else {
          store(rounded + i * kTileColumns + j, to_float(x) * quantum);
        }
      }
    }
    if (block.last) store_tile(task, m, n, rows, columns, rounded);
  }

  void store_tile(const Task& task, int64_t m, int64_t n, int rows, int64_t columns,
                  const float* tile) const {
    if (p_.c_type == DType::kBFloat16) {
      store_rows<uint16_t>(task, m, n, rows, columns, tile);
    } else {
      store_rows<float>(task, m, n, rows, columns, tile);
    }
  }

  template <class Out>
  void store_rows(const Task& task, int64_t m, int64_t n, int rows, int64_t columns,
                  const float* tile) const {
    const float* bias = p_.bias == nullptr ? nullptr : p_.bias + task.column0 + n;
    for (int i = 0; i < rows; ++i) {
      Out* row = static_cast<Out*>(p_.c) + (task.row0 + m + i) * p_.ldc + task.column0 + n;
      if (columns == kTileColumns) {  // nothing to mask
        for (int j = 0; j < kTileColumns; j += kLanes) {
          const F32x16 x = load(tile + i * kTileColumns + j);
          store(row + j, bias == nullptr ? x : x + load(bias + j));
        }
        continue;
      }
      for (int64_t j = 0; j < columns; j += kLanes) {
        const int count = clamp_lanes(columns - j);
        F32x16 x = load(tile + i * kTileColumns + j);
        if (bias != nullptr) x = x + load_partial(bias + j, count);
        store_partial(row + j, x, count);
      }
    }
  }

  const GemmParams& p_;
  Room room_;
  Chains chains_;
  int64_t limit_ = 0;
  bool direct_a_ = false;
  bool streams_ = false;  ///< what is overwritten goes past the caches, which it would only empty
  int64_t columns_per_task_ = 0;
  int64_t rows_per_task_ = 0;
};

}  // namespace

void gemm(const CpuContext& context, const GemmParams& p) {
  if (p.m <= 0 || p.n <= 0) return;
  if (p.input == DType::kBFloat16) {
    Gemm<BFloat16Input>(p, context.l2_bytes).run(context);
  } else {
#if TRAINYARD_CPU_ISA == TRAINYARD_ISA_AMX
    isa_avx512_bf16::gemm(context, p);
#else
    Gemm<Float32Input>(p, context.l2_bytes).run(context);
#endif
  }
}

}  // namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE

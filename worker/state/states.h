#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/base/error.h"
#include "common/layout/layout.h"
#include "worker/memory/memory_source.h"
#include "worker/state/weights.h"

namespace trainyard::engine {

/// What one data rank owns of the training state: fp32 masters and AdamW's moments of the elements
/// in its part of each unit; and its exact gradient sums of all elements. Where weights are fp32
/// they are the masters.
class States {
 public:
  /// `layout` and `weights` are not owned. Moments are what the memory holds: zero. Errors:
  /// kUnavailable when memory is short.
  static Result<std::unique_ptr<States>> create(const layout::Layout& layout, int data_rank,
                                                Weights& weights, MemorySource& memory);

  int64_t master_bytes() const { return masters_ * static_cast<int64_t>(sizeof(float)); }
  int64_t moment_bytes() const { return 2 * owned_ * static_cast<int64_t>(sizeof(float)); }
  int64_t accumulator_bytes() const {
    return layout_.elements() * static_cast<int64_t>(sizeof(int64_t));
  }

  const layout::Layout& layout() const { return layout_; }
  Weights& weights() { return weights_; }
  /// The elements of a parameter that this rank owns.
  layout::Range owned(int param) const { return layout_.owned(param, data_rank_); }
  std::vector<layout::Slice> owned_slices(int param) const {
    return layout_.owned_slices(param, data_rank_);
  }
  /// Of those elements.
  std::span<float> master(int param);
  std::span<float> m(int param) { return part(m_, shard_offset_, param); }
  std::span<float> v(int param) { return part(v_, shard_offset_, param); }
  /// Exact gradient sums of a whole parameter: this rank's own ones until its unit is reduced, then
  /// those of all ranks in the elements that it owns and nothing in the others.
  int64_t* accumulator(int param);
  std::span<int64_t> accumulators(int unit);

 private:
  States(const layout::Layout& layout, int data_rank, Weights& weights)
      : layout_(layout), data_rank_(data_rank), weights_(weights) {}
  std::span<float> part(float* base, const std::vector<int64_t>& offsets, int param) const;

  const layout::Layout& layout_;
  int data_rank_;
  Weights& weights_;
  std::vector<int64_t> sums_offset_;   // by unit: of its accumulators
  std::vector<int64_t> shard_offset_;  // by unit: of its part among the moments
  std::vector<int64_t> master_offset_;
  int64_t owned_ = 0;
  int64_t masters_ = 0;  // elements that are not weights themselves
  std::unique_ptr<MemoryBlock> block_;
  int64_t* accumulator_ = nullptr;
  float* master_ = nullptr;
  float* m_ = nullptr;
  float* v_ = nullptr;
};

}  // namespace trainyard::engine

#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/base/error.h"
#include "common/layout/layout.h"
#include "worker/device/memory_source.h"
#include "worker/state/weights.h"

namespace trainyard::engine {

/// What an engine is for, and with that which states it holds.
enum class Purpose : uint8_t {
  kTrain,
  kInfer,  ///< evaluation and sampling: weights alone, no masters, moments and sums
};

/// What one rank owns of the training state: fp32 masters, AdamW's moments and the exact gradient
/// sums of the elements in its part of each unit. Where weights are fp32 they are the masters.
/// Where the layout does not cut sums it holds those of all elements.
class States {
 public:
  /// `layout` and `weights` are not owned. Moments are what the memory holds: zero. Errors:
  /// kUnavailable when memory is short.
  static Result<std::unique_ptr<States>> create(const layout::Layout& layout,
                                                const layout::Coordinate& at, Weights& weights,
                                                MemorySource& memory,
                                                Purpose purpose = Purpose::kTrain);

  Purpose purpose() const { return purpose_; }
  /// Whether there are fp32 values of a parameter: masters, or weights that are fp32 themselves.
  bool has_master(int param) const {
    return purpose_ == Purpose::kTrain || weights_.dtype(param) == DType::kFloat32;
  }

  int64_t master_bytes() const { return masters_ * static_cast<int64_t>(sizeof(float)); }
  int64_t moment_bytes() const { return 2 * owned_ * static_cast<int64_t>(sizeof(float)); }
  /// Held for good.
  int64_t sum_bytes() const { return sums_ * static_cast<int64_t>(sizeof(int64_t)); }

  const layout::Layout& layout() const { return layout_; }
  const layout::Coordinate& at() const { return at_; }
  Weights& weights() { return weights_; }
  /// The elements of a parameter that this rank owns.
  layout::Range owned(int param) const { return layout_.owned(param, at_); }
  std::vector<layout::Rectangle> owned_slices(int param) const {
    return layout_.owned_slices(param, at_);
  }
  /// Of those elements. CHECKs that they are held.
  std::span<float> master(int param);
  std::span<float> m(int param);
  std::span<float> v(int param);

  /// Where sums are cut: the buffer that ops add a unit's to from now on; null: none.
  void lend(int unit, int64_t* buffer);
  /// Whether ops have a buffer to add to: where sums are not cut, always.
  bool has_buffer(int unit) const { return sums_buffer_[static_cast<size_t>(unit)] != nullptr; }
  /// Sums of a whole unit, and of a parameter in it: this rank's own ones until they are reduced,
  /// then those of all ranks in the elements that it owns and nothing that counts in the others.
  /// CHECKs that there is a buffer.
  std::span<int64_t> sums(int unit);
  int64_t* sums_of(int param) {
    return sums(layout_.unit_of(param)).data() + layout_.place(param).begin;
  }
  /// Sums of the elements that this rank owns: of a unit, where they are cut what ACCUMULATE adds
  /// to; and of a parameter.
  std::span<int64_t> owned_sums(int unit);
  std::span<int64_t> owned_sums_of(int param);

 private:
  States(const layout::Layout& layout, const layout::Coordinate& at, Weights& weights,
         Purpose purpose)
      : layout_(layout), at_(at), weights_(weights), purpose_(purpose) {}
  template <class T>
  std::span<T> part(T* base, const std::vector<int64_t>& offsets, int param) const;

  const layout::Layout& layout_;
  layout::Coordinate at_;
  Weights& weights_;
  Purpose purpose_;
  std::vector<int64_t*> sums_buffer_;  // by unit; null where ops have none to add to
  std::vector<int64_t> sums_offset_;   // by unit: of this rank's part among the sums
  std::vector<int64_t> shard_offset_;  // by unit: of its part among the moments
  std::vector<int64_t> master_offset_;
  int64_t owned_ = 0;
  int64_t masters_ = 0;  // elements that are not weights themselves
  int64_t sums_ = 0;
  std::unique_ptr<MemoryBlock> block_;  // null: for inference nothing of this is held
  int64_t* sums_begin_ = nullptr;
  float* master_ = nullptr;
  float* m_ = nullptr;
  float* v_ = nullptr;
};

}  // namespace trainyard::engine

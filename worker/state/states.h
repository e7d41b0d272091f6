#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/base/error.h"
#include "common/layout/layout.h"
#include "kernels/elements.h"
#include "worker/device/memory_source.h"
#include "worker/state/weights.h"

namespace trainyard::engine {

/// What an engine is for, and with that which states it holds.
enum class Purpose : uint8_t {
  kTrain,
  kInfer,  ///< evaluation and sampling: weights alone, no masters, moments and sums
};

/// Sums of gradients that lie beside each other.
struct SumSpan {
  std::byte* data = nullptr;
  int64_t size = 0;  ///< elements
  DType type = DType::kInt64;

  std::span<std::byte> bytes() const { return {data, static_cast<size_t>(size * size_of(type))}; }
  kernels::GradientSum from(int64_t element) const {
    return {data + element * size_of(type), type};
  }
};

/// What one rank owns of the training state: fp32 masters, AdamW's moments and the gradient sums,
/// of type DeviceFormats::sums, of the elements in its part of each unit. Where weights are fp32
/// they are the masters. Where the layout does not cut sums it holds those of all elements.
class States {
 public:
  /// `layout` and `weights` are not owned. `sums`: the type of the gradient sums, kInt64 or
  /// kFloat32. Moments are what the memory holds: zero. Errors: kUnavailable when memory is short.
  static Result<std::unique_ptr<States>> create(const layout::Layout& layout,
                                                const layout::Coordinate& at, Weights& weights,
                                                MemorySource& memory,
                                                Purpose purpose = Purpose::kTrain,
                                                DType sums = DType::kInt64);

  Purpose purpose() const { return purpose_; }
  /// Whether there are fp32 values of a parameter: masters, or weights that are fp32 themselves.
  bool has_master(int param) const {
    return purpose_ == Purpose::kTrain || weights_.dtype(param) == DType::kFloat32;
  }

  int64_t master_bytes() const { return masters_ * static_cast<int64_t>(sizeof(float)); }
  int64_t moment_bytes() const { return 2 * owned_ * static_cast<int64_t>(sizeof(float)); }
  DType sum_type() const { return sum_type_; }
  /// Held for good.
  int64_t sum_bytes() const { return sums_ * size_of(sum_type_); }

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
  void lend(int unit, std::byte* buffer);
  /// Whether ops have a buffer to add to: where sums are not cut, always.
  bool has_buffer(int unit) const { return sums_buffer_[static_cast<size_t>(unit)] != nullptr; }
  /// Sums of a whole unit, and of a parameter in it: this rank's own ones until they are reduced,
  /// then those of all ranks in the elements that it owns and nothing that counts in the others.
  /// CHECKs that there is a buffer.
  SumSpan sums(int unit);
  kernels::GradientSum sums_of(int param) {
    return sums(layout_.unit_of(param)).from(layout_.place(param).begin);
  }
  /// Sums of the elements that this rank owns: of a unit, where they are cut what ACCUMULATE adds
  /// to; and of a parameter.
  SumSpan owned_sums(int unit);
  SumSpan owned_sums_of(int param);
  /// Where the copies of a unit bring together the gradient that each has rounded a share of
  /// (Layout::rounded_part()): of all elements that this rank owns, in the memory of owned_sums()
  /// and, where those are exact, apart from the sums of its own share. Fp32 sums are not rounded:
  /// there it is owned_sums().
  std::span<float> rounded(int unit);
  std::span<float> rounded_of(int param);

 private:
  States(const layout::Layout& layout, const layout::Coordinate& at, Weights& weights,
         Purpose purpose, DType sums)
      : layout_(layout), at_(at), weights_(weights), purpose_(purpose), sum_type_(sums) {}
  /// From the first element of a unit's part to the first that this rank owns of a parameter.
  int64_t place_in_part(int param) const;
  template <class T>
  std::span<T> part(T* base, const std::vector<int64_t>& offsets, int param) const;

  const layout::Layout& layout_;
  layout::Coordinate at_;
  Weights& weights_;
  Purpose purpose_;
  DType sum_type_;
  std::vector<std::byte*> sums_buffer_;  // by unit; null where ops have none to add to
  std::vector<int64_t> sums_offset_;     // by unit: of this rank's part among the sums
  std::vector<int64_t> shard_offset_;    // by unit: of its part among the moments
  std::vector<int64_t> master_offset_;
  int64_t owned_ = 0;
  int64_t masters_ = 0;  // elements that are not weights themselves
  int64_t sums_ = 0;
  std::unique_ptr<MemoryBlock> block_;  // null: for inference nothing of this is held
  std::byte* sums_begin_ = nullptr;
  float* master_ = nullptr;
  float* m_ = nullptr;
  float* v_ = nullptr;
};

}  // namespace trainyard::engine

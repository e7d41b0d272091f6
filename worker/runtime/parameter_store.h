#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/base/dtype.h"
#include "common/base/error.h"
#include "worker/memory/memory_source.h"
#include "worker/model/model.h"
#include "worker/program/instruction.h"

namespace trainyard::engine {

/// A contiguous run of parameters whose gradients travel together.
struct GradientBucket {
  int64_t first_element = 0;  ///< in the store's flat order
  int64_t elements = 0;
  std::vector<int> params;  ///< indexes into Model::params, in flat order
  int ready_chunk = 0;      ///< the lowest chunk that adds to it
};

/// Bytes the store holds for one parameter element: fp32 master, m and v, the int64 accumulator
/// (whose memory the fp32 gradient reuses after the reduction), and the bf16 copy where computed
/// in.
constexpr int64_t parameter_state_bytes(DType compute) {
  return 4 + 8 + 4 + 4 + (compute == DType::kFloat32 ? 0 : size_of(compute));
}

/// Parameters, optimizer moments and gradient accumulators of one rank, in one block of a
/// MemorySource. Flat order is the order of reduction: parameters of later layers first, dense, so
/// that a bucket is one contiguous span without padding on the wire.
class ParameterStore {
 public:
  /// `chunk_of_layer[i]`: the chunk that runs layer i. `bucket_bytes`: a bucket is closed once its
  /// accumulators reach this size. Errors: kUnavailable when memory is short.
  static Result<std::unique_ptr<ParameterStore>> create(const Model& model, DType compute,
                                                        std::span<const int> chunk_of_layer,
                                                        int64_t bucket_bytes, MemorySource& memory);

  int64_t elements() const { return elements_; }
  int64_t bytes() const { return parameter_state_bytes(compute_) * elements_; }
  std::span<const GradientBucket> buckets() const { return buckets_; }
  /// Parameter indexes in ascending order of global name.
  std::span<const int> name_order() const { return name_order_; }

  std::span<float> master(int param) { return {master_ + offset(param), count(param)}; }
  std::span<float> m(int param) { return {m_ + offset(param), count(param)}; }
  std::span<float> v(int param) { return {v_ + offset(param), count(param)}; }
  /// What GEMMs read: the bf16 copy, or the master itself under fp32.
  void* compute_copy(int param);
  /// The copy that the optimizer keeps up to date, or null where GEMMs read the master.
  uint16_t* bf16_copy(int param) {
    return compute_ == DType::kFloat32 ? nullptr : copy_ + offset(param);
  }
  /// Exact gradient sums, valid from the first addition of a step to the bucket's kGather.
  int64_t* accumulator(int param) { return accumulator_ + offset(param); }
  std::span<int64_t> bucket_accumulator(int bucket);
  /// fp32 gradient of the mean loss, valid from the bucket's kGather to the
  /// next step.
  std::span<const float> gradient(int param) const;
  /// The first half of the bucket's accumulator memory, as fp32.
  std::span<float> bucket_gradient(int bucket);

 private:
  ParameterStore() = default;
  int64_t offset(int param) const { return offsets_[static_cast<size_t>(param)]; }
  size_t count(int param) const { return static_cast<size_t>(counts_[static_cast<size_t>(param)]); }

  DType compute_ = DType::kFloat32;
  int64_t elements_ = 0;
  std::vector<int64_t> offsets_;
  std::vector<int64_t> counts_;
  std::vector<int> bucket_of_;
  std::vector<int> name_order_;
  std::vector<GradientBucket> buckets_;
  std::unique_ptr<MemoryBlock> block_;
  float* master_ = nullptr;
  float* m_ = nullptr;
  float* v_ = nullptr;
  int64_t* accumulator_ = nullptr;
  uint16_t* copy_ = nullptr;
};

}  // namespace trainyard::engine

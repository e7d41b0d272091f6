#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>

#include "common/base/dtype.h"
#include "common/base/error.h"
#include "kernels/cuda/ops.h"

namespace trainyard::kernels::cuda {

/// What a library's plan of attention depends on; AttentionForward (kernels/kernel_set.h) says what
/// the shapes mean.
struct AttentionProblem {
  int64_t sequences = 0, longest = 0, heads = 0, kv_heads = 0, head_dim = 0;
  bool is_ragged = false;   ///< sequences are shorter than `longest`
  bool has_window = false;  ///< that is shorter than `longest`
  bool causal = true, has_dropout = false;
  DType type = DType::kBFloat16;

  /// Whether the kernels of kernels/cuda/ops.h do it, with any library.
  bool needs_own() const {
    return is_ragged || has_window || has_dropout || !causal || longest < 2 ||
           type != DType::kBFloat16 || (head_dim != 64 && head_dim != 128);
  }
  auto operator<=>(const AttentionProblem&) const = default;  // NOLINT: clang-tidy 14 sees a 0
};

/// That of a call.
AttentionProblem problem_of(const AttentionForward& p, const DeviceRows& rows);
AttentionProblem problem_of(const AttentionBackward& p, const DeviceRows& rows);

/// A library that offers attention, forward and backward, with the results of attention_forward and
/// attention_backward up to rounding, `lse` included: either may read what the other has written.
class AttentionLibrary {
 public:
  /// One problem, planned. Both passes enqueue on the stream and neither allocate device memory nor
  /// synchronise. kUnavailable where the library fails; results are then undefined.
  class Plan {
   public:
    virtual ~Plan() = default;
    /// That either pass wants.
    virtual size_t scratch_bytes() const = 0;
    virtual Status forward(const AttentionForward& p, void* scratch, cudaStream_t stream) = 0;
    virtual Status backward(const AttentionBackward& p, void* scratch, cudaStream_t stream) = 0;
  };

  virtual ~AttentionLibrary() = default;
  /// Takes up to seconds. kInvalidConfig where the library is not for the problem, kUnavailable
  /// where it has no plan. The plan must not outlive the library.
  virtual Result<std::unique_ptr<Plan>> plan(const AttentionProblem& problem) = 0;
};

/// Attention by a library, and by the kernels of kernels/cuda/ops.h where it has no plan for a
/// problem, and for all problems from the first failure of a pass on: bits of a problem change at
/// most once. Not thread-safe.
class Attention {
 public:
  using Open = std::function<Result<std::unique_ptr<AttentionLibrary>>()>;
  using Log = std::function<void(const std::string& line)>;

  /// `log` gets one line with the reason when the library fails, be it now or later, and one for
  /// each problem that it has no plan for: also one that wants more than `scratch_max` bytes.
  Attention(const Open& open, Log log, size_t scratch_max = std::numeric_limits<size_t>::max());

  /// Plans a problem, once. The bytes of scratch that both passes want, aligned to 256 bytes; they
  /// are enough after a failure, too.
  size_t prepare(const AttentionProblem& problem);
  /// As attention_forward and attention_backward, with that scratch.
  /// cudaErrorInvalidValue for a problem that was not prepared.
  cudaError_t forward(const AttentionForward& p, const DeviceRows& rows, void* scratch,
                      cudaStream_t stream);
  cudaError_t backward(const AttentionBackward& p, const DeviceRows& rows, void* scratch,
                       cudaStream_t stream);

  bool uses_library() const { return library_ != nullptr && !failed_; }
  /// Whether a prepared problem is computed by it.
  bool uses_library(const AttentionProblem& problem) const {
    const auto plan = plans_.find(problem);
    return uses_library() && plan != plans_.end() && plan->second != nullptr;
  }

 private:
  template <typename P, typename Own, typename OfPlan>
  cudaError_t run(const P& p, const DeviceRows& rows, const Own& own, const OfPlan& of_plan);
  /// Null where the library has none.
  std::unique_ptr<AttentionLibrary::Plan> plan_of(const AttentionProblem& problem);
  /// `where` own kernels run.
  void tell(const std::string& where, const Error& reason);

  Log log_;
  size_t scratch_max_;
  bool failed_ = false;
  /// Kept after a failure, as are its plans: kernels in flight and captured graphs use them.
  std::unique_ptr<AttentionLibrary> library_;
  /// Null: own kernels.
  std::map<AttentionProblem, std::unique_ptr<AttentionLibrary::Plan>> plans_;
};

}  // namespace trainyard::kernels::cuda

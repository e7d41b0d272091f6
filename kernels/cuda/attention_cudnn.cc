#include "kernels/cuda/attention_cudnn.h"

#if defined(TRAINYARD_WITH_CUDNN)

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cudnn_frontend.h>
#include <dlfcn.h>
#include <exception>
#include <unordered_map>
#include <utility>

/// cuDNN, as NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING wants it: a variable of the program.
void* cudnn_frontend::cudnn_dlhandle = nullptr;  // NOLINT

namespace trainyard::kernels::cuda {
namespace {

namespace fe = cudnn_frontend;
using fe::graph::Graph;
using fe::graph::Tensor_attributes;
using Tensor = std::shared_ptr<Tensor_attributes>;

constexpr size_t kVersionMin = 91400;

/// Names of the tensors of both graphs.
enum Uid : int64_t { kQ = 1, kK, kV, kOut, kLse, kDOut, kDQ, kDK, kDV };
using Pointers = std::unordered_map<int64_t, void*>;

/// The front end may throw where a library or a function is missing.
template <typename F>
Status guarded(const std::string& what, const F& f) {
  std::string fault;
  try {
    const fe::error_t error = f();
    if (error.is_good()) return {};
    fault = error.err_msg;
  } catch (const std::exception& error) {
    fault = error.what();
  }
  return Error{ErrorCode::kUnavailable, "cuDNN: " + what + ": " + fault};
}

/// Matrices of a problem: rows of `heads` heads, `stride` elements from row to row.
class Shapes {
 public:
  explicit Shapes(const AttentionProblem& problem) : p_(problem) {}

  int64_t packed() const { return (p_.heads + 2 * p_.kv_heads) * p_.head_dim; }
  int64_t dense() const { return p_.heads * p_.head_dim; }
  Tensor_attributes rows(Uid uid, int64_t heads, int64_t stride) const {
    return Tensor_attributes()
        .set_uid(uid)
        .set_dim({p_.sequences, heads, p_.longest, p_.head_dim})
        .set_stride({p_.longest * stride, p_.head_dim, stride, 1});
  }
  Tensor_attributes lse() const {
    return Tensor_attributes()
        .set_uid(kLse)
        .set_dim({p_.sequences, p_.heads, p_.longest, 1})
        .set_stride({p_.heads * p_.longest, p_.longest, 1, 1})
        .set_data_type(fe::DataType_t::FLOAT);
  }
  /// What a graph gives.
  static void set_output(const Tensor& tensor, const Tensor_attributes& as) {
    tensor->set_output(true)
        .set_uid(as.get_uid())
        .set_dim(as.get_dim())
        .set_stride(as.get_stride());
    if (as.get_data_type() != fe::DataType_t::NOT_SET) tensor->set_data_type(as.get_data_type());
  }

 private:
  AttentionProblem p_;
};

class CudnnPlan final : public AttentionLibrary::Plan {
 public:
  CudnnPlan(cudnnHandle_t handle, const AttentionProblem& problem, bool deterministic)
      : handle_(handle), problem_(problem), shapes_(problem), deterministic_(deterministic) {}

  Status build() {
    for (Graph* const graph : {&forward_, &backward_}) {
      graph->set_io_data_type(fe::DataType_t::BFLOAT16)
          .set_intermediate_data_type(fe::DataType_t::FLOAT)
          .set_compute_data_type(fe::DataType_t::FLOAT);
    }
    describe_forward();
    describe_backward();
    TRAINYARD_TRY(build(forward_, "planning attention"));
    return build(backward_, "planning attention's gradients");
  }

  size_t scratch_bytes() const override { return scratch_bytes_; }

  Status forward(const AttentionForward& p, void* scratch, cudaStream_t stream) override {
    Pointers pointers;
    add_packed(pointers, const_cast<void*>(p.qkv.data), {kQ, kK, kV});
    pointers[kOut] = p.out.data;
    pointers[kLse] = p.lse;
    return run(forward_, "attention", pointers, scratch, stream);
  }
  Status backward(const AttentionBackward& p, void* scratch, cudaStream_t stream) override {
    Pointers pointers;
    add_packed(pointers, const_cast<void*>(p.qkv.data), {kQ, kK, kV});
    add_packed(pointers, p.d_qkv.data, {kDQ, kDK, kDV});
    pointers[kOut] = const_cast<void*>(p.out.data);
    pointers[kLse] = const_cast<float*>(p.lse);
    pointers[kDOut] = const_cast<void*>(p.d_out.data);
    return run(backward_, "attention's gradients", pointers, scratch, stream);
  }

 private:
  struct Inputs {
    Tensor q, k, v;
  };
  Inputs inputs(Graph& graph) const {
    const int64_t stride = shapes_.packed();
    return {graph.tensor(shapes_.rows(kQ, problem_.heads, stride)),
            graph.tensor(shapes_.rows(kK, problem_.kv_heads, stride)),
            graph.tensor(shapes_.rows(kV, problem_.kv_heads, stride))};
  }
  float scale() const { return 1.0F / std::sqrt(static_cast<float>(problem_.head_dim)); }

  void describe_forward() {
    const Inputs in = inputs(forward_);
    const auto [out, lse] = forward_.sdpa(in.q, in.k, in.v,
                                          fe::graph::SDPA_attributes()
                                              .set_generate_stats(true)
                                              .set_attn_scale(scale())
                                              .set_diagonal_band_right_bound(0));
    Shapes::set_output(out, shapes_.rows(kOut, problem_.heads, shapes_.dense()));
    Shapes::set_output(lse, shapes_.lse());
  }

  void describe_backward() {
    const Inputs in = inputs(backward_);
    const Tensor out = backward_.tensor(shapes_.rows(kOut, problem_.heads, shapes_.dense()));
    const Tensor d_out = backward_.tensor(shapes_.rows(kDOut, problem_.heads, shapes_.dense()));
    const Tensor lse = backward_.tensor(shapes_.lse());
    const auto [dq, dk, dv] =
        backward_.sdpa_backward(in.q, in.k, in.v, out, d_out, lse,
                                fe::graph::SDPA_backward_attributes()
                                    .set_attn_scale(scale())
                                    .set_diagonal_band_right_bound(0)
                                    .set_deterministic_algorithm(deterministic_));
    const int64_t stride = shapes_.packed();
    Shapes::set_output(dq, shapes_.rows(kDQ, problem_.heads, stride));
    Shapes::set_output(dk, shapes_.rows(kDK, problem_.kv_heads, stride));
    Shapes::set_output(dv, shapes_.rows(kDV, problem_.kv_heads, stride));
  }

  Status build(Graph& graph, const std::string& what) {
    TRAINYARD_TRY(guarded(what, [&] { return graph.build(handle_, {fe::HeurMode_t::A}); }));
    int64_t bytes = 0;
    TRAINYARD_TRY(guarded(what, [&] { return graph.get_workspace_size(bytes); }));
    scratch_bytes_ = std::max(scratch_bytes_, static_cast<size_t>(bytes));
    return {};
  }

  /// q, k and v of packed rows.
  void add_packed(Pointers& pointers, void* rows, const std::array<Uid, 3>& uids) const {
    auto* const bf16 = static_cast<uint16_t*>(rows);
    pointers[uids[0]] = bf16;
    pointers[uids[1]] = bf16 + problem_.heads * problem_.head_dim;
    pointers[uids[2]] = bf16 + (problem_.heads + problem_.kv_heads) * problem_.head_dim;
  }

  Status run(Graph& graph, const std::string& what, Pointers& pointers, void* scratch,
             cudaStream_t stream) const {
    return guarded(what, [&]() -> fe::error_t {
      if (const auto status = fe::detail::set_stream(handle_, stream);
          status != CUDNN_STATUS_SUCCESS) {
        return {fe::error_code_t::HANDLE_ERROR, fe::detail::get_error_string(status)};
      }
      return graph.execute(handle_, pointers, scratch);
    });
  }

  cudnnHandle_t handle_;
  AttentionProblem problem_;
  Shapes shapes_;
  bool deterministic_;
  Graph forward_, backward_;
  size_t scratch_bytes_ = 0;
};

class CudnnAttention final : public AttentionLibrary {
 public:
  explicit CudnnAttention(bool deterministic) : deterministic_(deterministic) {}
  ~CudnnAttention() override {
    if (handle_ != nullptr) fe::detail::destroy_handle(handle_);
  }
  CudnnAttention(const CudnnAttention&) = delete;
  CudnnAttention& operator=(const CudnnAttention&) = delete;

  Status open(const std::string& library) {
    return guarded("opening " + library, [&]() -> fe::error_t {
      if (const size_t version = fe::detail::get_backend_version(); version < kVersionMin) {
        return {fe::error_code_t::INVALID_VALUE,
                "its version is " + fe::detail::convert_version_to_str(version) + ", wanted " +
                    fe::detail::convert_version_to_str(kVersionMin) + " or newer"};
      }
      const auto status = fe::detail::create_handle(&handle_);
      if (status == CUDNN_STATUS_SUCCESS) return {};
      return {fe::error_code_t::HANDLE_ERROR, fe::detail::get_error_string(status)};
    });
  }

  Result<std::unique_ptr<Plan>> plan(const AttentionProblem& p) override {
    if (p.type != DType::kBFloat16 || !p.causal || p.is_ragged || p.has_dropout ||
        (p.head_dim != 64 && p.head_dim != 128) || p.longest < 2) {
      return Error{ErrorCode::kInvalidConfig,
                   "cuDNN: attention of " + std::to_string(p.longest) + " tokens, heads of " +
                       std::to_string(p.head_dim) + " elements, " + std::string(name_of(p.type)) +
                       (p.causal ? ", causal" : ", bidirectional") +
                       (p.is_ragged ? ", sequences of other lengths" : "") +
                       (p.has_dropout ? ", dropout" : "") +
                       "; wanted two tokens or more, heads of 64 or 128 elements, bf16, causal, "
                       "sequences of one length, no dropout"};
    }
    auto plan = std::make_unique<CudnnPlan>(handle_, p, deterministic_);
    TRAINYARD_TRY(plan->build());
    return plan;
  }

 private:
  bool deterministic_;
  cudnnHandle_t handle_ = nullptr;
};

}  // namespace

Result<std::unique_ptr<AttentionLibrary>> open_cudnn_attention(const CudnnOptions& options) {
  void* const handle = dlopen(options.library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return Error{ErrorCode::kUnavailable,
                 "cuDNN: " + std::string(dlerror()) + "; put its folder into LD_LIBRARY_PATH"};
  }
  fe::cudnn_dlhandle = handle;
  auto library = std::make_unique<CudnnAttention>(options.deterministic);
  TRAINYARD_TRY(library->open(options.library));
  return library;
}

}  // namespace trainyard::kernels::cuda

#else

namespace trainyard::kernels::cuda {

Result<std::unique_ptr<AttentionLibrary>> open_cudnn_attention(const CudnnOptions&) {
  return Error{ErrorCode::kUnavailable,
               "cuDNN: this build has no front end of it; run tools/setup cuda, build again"};
}

}  // namespace trainyard::kernels::cuda

#endif

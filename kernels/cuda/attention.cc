#include "kernels/cuda/attention.h"

#include <algorithm>
#include <utility>

namespace trainyard::kernels::cuda {
namespace {

constexpr size_t kReasonCharactersMax = 400;

template <typename P>
AttentionProblem problem_of_call(const P& p, const DeviceRows& rows) {
  return {.sequences = rows.sequences_count,
          .longest = rows.longest,
          .heads = p.heads,
          .kv_heads = p.kv_heads,
          .head_dim = p.head_dim,
          .is_ragged = rows.count != rows.sequences_count * rows.longest,
          .has_window = (p.window > 0) && (p.window < rows.longest),
          .causal = p.causal,
          .has_dropout = (p.dropout.rate > 0),
          .type = p.qkv.type};
}

}  // namespace

AttentionProblem problem_of(const AttentionForward& p, const DeviceRows& rows) {
  return problem_of_call(p, rows);
}
AttentionProblem problem_of(const AttentionBackward& p, const DeviceRows& rows) {
  return problem_of_call(p, rows);
}

Attention::Attention(const Open& open, Log log, size_t scratch_max)
    : log_(std::move(log)), scratch_max_(scratch_max) {
  auto library = open();
  if (library) {
    library_ = *std::move(library);
  } else {
    give_up(library.error());
  }
}

void Attention::give_up(const Error& reason) {
  failed_ = true;
  // A library's words may be many lines.
  std::string words = reason.message.substr(0, kReasonCharactersMax);
  std::replace(words.begin(), words.end(), '\n', ' ');
  log_("attention runs on Trainyard's own kernels: " + words);
}

size_t Attention::prepare(const AttentionProblem& problem) {
  const auto own =
      static_cast<size_t>(problem.sequences * problem.heads * problem.longest) * sizeof(float);
  if (!uses_library() || problem.needs_own()) return own;
  auto plan = plans_.find(problem);
  if (plan == plans_.end()) {
    auto made = library_->plan(problem);
    if (!made) {
      give_up(made.error());
      return own;
    }
    if (const size_t wanted = (*made)->scratch_bytes(); wanted > scratch_max_) {
      give_up({ErrorCode::kUnavailable, "the library wants " + std::to_string(wanted) +
                                            " bytes of scratch, planned are " +
                                            std::to_string(scratch_max_)});
      return own;
    }
    plan = plans_.emplace(problem, *std::move(made)).first;
  }
  return std::max(own, plan->second->scratch_bytes());
}

template <typename P, typename Own, typename OfPlan>
cudaError_t Attention::run(const P& p, const DeviceRows& rows, const Own& own,
                           const OfPlan& of_plan) {
  const AttentionProblem problem = problem_of(p, rows);
  if (p.keys != nullptr || p.out.type != p.qkv.type) return cudaErrorInvalidValue;
  if (!uses_library() || problem.needs_own()) return own();
  const auto plan = plans_.find(problem);
  if (plan == plans_.end()) return cudaErrorInvalidValue;
  const Status status = of_plan(*plan->second);
  if (status) return cudaSuccess;
  give_up(status.error());
  return own();
}

cudaError_t Attention::forward(const AttentionForward& p, const DeviceRows& rows, void* scratch,
                               cudaStream_t stream) {
  return run(
      p, rows, [&] { return attention_forward(p, rows, stream); },
      [&](AttentionLibrary::Plan& plan) { return plan.forward(p, scratch, stream); });
}

cudaError_t Attention::backward(const AttentionBackward& p, const DeviceRows& rows, void* scratch,
                                cudaStream_t stream) {
  if (p.d_out.type != p.qkv.type || p.d_qkv.type != p.qkv.type) return cudaErrorInvalidValue;
  return run(
      p, rows, [&] { return attention_backward(p, rows, static_cast<float*>(scratch), stream); },
      [&](AttentionLibrary::Plan& plan) { return plan.backward(p, scratch, stream); });
}

}  // namespace trainyard::kernels::cuda

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
    tell("", library.error());
  }
}

void Attention::tell(const std::string& where, const Error& reason) {
  // A library's words may be many lines.
  std::string words = reason.message.substr(0, kReasonCharactersMax);
  std::replace(words.begin(), words.end(), '\n', ' ');
  log_("attention" + where + " runs on Trainyard's own kernels: " + words);
}

std::unique_ptr<AttentionLibrary::Plan> Attention::plan_of(const AttentionProblem& problem) {
  auto plan = library_->plan(problem);
  if (plan && (*plan)->scratch_bytes() > scratch_max_) {
    plan = Error{ErrorCode::kUnavailable,
                 "the library wants " + std::to_string((*plan)->scratch_bytes()) +
                     " bytes of scratch, planned are " + std::to_string(scratch_max_)};
  }
  if (plan) return *std::move(plan);
  tell(" of " + std::to_string(problem.sequences) + " sequences of " +
           std::to_string(problem.longest) + " tokens",
       plan.error());
  return nullptr;
}

size_t Attention::prepare(const AttentionProblem& problem) {
  const auto own =
      static_cast<size_t>(problem.sequences * problem.heads * problem.longest) * sizeof(float);
  if (!uses_library() || problem.needs_own()) return own;
  auto plan = plans_.find(problem);
  if (plan == plans_.end()) plan = plans_.emplace(problem, plan_of(problem)).first;
  return plan->second == nullptr ? own : std::max(own, plan->second->scratch_bytes());
}

template <typename P, typename Own, typename OfPlan>
cudaError_t Attention::run(const P& p, const DeviceRows& rows, const Own& own,
                           const OfPlan& of_plan) {
  const AttentionProblem problem = problem_of(p, rows);
  if (p.keys != nullptr || p.out.type != p.qkv.type) return cudaErrorInvalidValue;
  if (!uses_library() || problem.needs_own()) return own();
  const auto plan = plans_.find(problem);
  if (plan == plans_.end()) return cudaErrorInvalidValue;
  if (plan->second == nullptr) return own();
  const Status status = of_plan(*plan->second);
  if (status) return cudaSuccess;
  failed_ = true;
  tell("", status.error());
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

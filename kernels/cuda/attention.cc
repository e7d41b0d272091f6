#include "kernels/cuda/attention.h"

#include <algorithm>
#include <utility>

namespace trainyard::kernels::cuda {
namespace {

constexpr size_t kReasonCharactersMax = 400;

template <typename P>
AttentionProblem problem_of(const P& p) {
  return {.sequences = p.rows.sequences_count,
          .longest = p.rows.longest,
          .heads = p.heads,
          .kv_heads = p.kv_heads,
          .head_dim = p.head_dim,
          .is_ragged = p.rows.count != p.rows.sequences_count * p.rows.longest,
          .causal = p.causal,
          .has_dropout = p.dropout.rate > 0,
          .type = p.type};
}

}  // namespace

Attention::Attention(const Open& open, Log log) : log_(std::move(log)) {
  auto library = open();
  if (library) {
    library_ = *std::move(library);
  } else {
    give_up(library.error());
  }
}

void Attention::give_up(const Error& reason) {
  plans_.clear();
  library_.reset();
  // A library's words may be many lines.
  std::string words = reason.message.substr(0, kReasonCharactersMax);
  std::replace(words.begin(), words.end(), '\n', ' ');
  log_("attention runs on Trainyard's own kernels: " + words);
}

size_t Attention::prepare(const AttentionProblem& problem) {
  const auto own =
      static_cast<size_t>(problem.sequences * problem.heads * problem.longest) * sizeof(float);
  if (library_ == nullptr || problem.is_ragged) return own;
  auto& plan = plans_[problem];
  if (plan == nullptr) {
    auto made = library_->plan(problem);
    if (!made) {
      give_up(made.error());
      return own;
    }
    plan = *std::move(made);
  }
  return std::max(own, plan->scratch_bytes());
}

template <typename P, typename Own, typename OfPlan>
cudaError_t Attention::run(const P& p, const Own& own, const OfPlan& of_plan) {
  const AttentionProblem problem = problem_of(p);
  if (library_ == nullptr || problem.is_ragged) return own();
  const auto plan = plans_.find(problem);
  if (plan == plans_.end()) return cudaErrorInvalidValue;
  const Status status = of_plan(*plan->second);
  if (status) return cudaSuccess;
  give_up(status.error());
  return own();
}

cudaError_t Attention::forward(const AttentionForward& p, void* scratch, cudaStream_t stream) {
  return run(
      p, [&] { return attention_forward(p, stream); },
      [&](AttentionLibrary::Plan& plan) { return plan.forward(p, scratch, stream); });
}

cudaError_t Attention::backward(AttentionBackward p, void* scratch, cudaStream_t stream) {
  p.scratch = static_cast<float*>(scratch);
  return run(
      p, [&] { return attention_backward(p, stream); },
      [&](AttentionLibrary::Plan& plan) { return plan.backward(p, scratch, stream); });
}

}  // namespace trainyard::kernels::cuda

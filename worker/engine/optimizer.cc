#include "worker/engine/optimizer.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "common/math/portable.h"
#include "worker/engine/learning_rate.h"

namespace trainyard::engine {
Optimizer::Optimizer(const api::OptimizerSpec& spec, const api::LearningRateSchedule& schedule,
                     int64_t total_updates, const Model& model)
    : spec_(spec), schedule_(schedule), total_updates_(total_updates), model_(model) {}

void add(ControlWord& sum, const ControlWord& other) {
  // Modulo 2^64, as the ranks' sums are.
  const auto wrapped = [](int64_t a, int64_t b) {
    return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  };
  sum.loss_sum = wrapped(sum.loss_sum, other.loss_sum);
  sum.coarse_loss_sum = wrapped(sum.coarse_loss_sum, other.coarse_loss_sum);
  sum.targets += other.targets;
  sum.overflow += other.overflow;
  sum.loss_unknown += other.loss_unknown;
  sum.stop_requested += other.stop_requested;
}

bool carry_squares(ControlWord& control) {
  constexpr int kTop = kernels::kSquareLimbs - 1;
  int64_t* const limbs = control.gradient_squares;
  for (int k = 0; k < kTop; ++k) {
    limbs[k + 1] += limbs[k] >> kernels::kSquareLimbBits;
    limbs[k] &= (int64_t{1} << kernels::kSquareLimbBits) - 1;
  }
  // Below 0: the ranks' sums have wrapped.
  return limbs[kTop] >= 0 && limbs[kTop] < kernels::kSquareLimit;
}

double loss_total(const ControlWord& control) {
  constexpr int kFiner = kernels::kLossQuantumLog2 - kernels::kCoarseLossQuantumLog2;
  const auto coarse = static_cast<uint64_t>(control.coarse_loss_sum) << kFiner;
  const uint64_t rest = static_cast<uint64_t>(control.loss_sum) - coarse;
  const auto quanta =
      (static_cast<__int128>(control.coarse_loss_sum) << kFiner) + static_cast<__int128>(rest);
  return std::ldexp(static_cast<double>(quanta), -kernels::kLossQuantumLog2);
}

void Optimizer::begin(ControlWord control, int64_t divisor, DType sums) {
  const bool learns = control.targets > 0 && control.overflow == 0;
  scalars_.skip = carry_squares(control) && learns ? 0 : 1;
  double squares = 0;
  for (int k = 0; k < kernels::kSquareLimbs; ++k) {
    squares += std::ldexp(static_cast<double>(control.gradient_squares[k]),
                          k * kernels::kSquareLimbBits - kernels::kSquareQuantumLog2);
  }
  // Exactly 1 where every target counts; of none there is no gradient.
  const double to_mean = control.targets == 0
                             ? 1
                             : static_cast<double>(divisor) / static_cast<double>(control.targets);
  const double norm = std::sqrt(squares) * to_mean;
  scalars_.gradient_norm = norm;
  double clip = 1;
  // PyTorch's clip_grad_norm_ adds 1e-6 to the norm; parity with it is part of the contract.
  if (spec_.gradient_clip > 0) clip = std::min(1.0, spec_.gradient_clip / (norm + 1e-6));
  const double divided = sums == DType::kFloat32 ? 1 / static_cast<double>(divisor) : 1;
  scalars_.clip_scale = static_cast<float>(clip * to_mean * divided);
  scalars_.learning_rate =
      static_cast<float>(learning_rate(schedule_, spec_.learning_rate, total_updates_, updates_));
  if (scalars_.skip != 0) return;
  ++updates_;
  scalars_.bias_correction1 = static_cast<float>(1 / (1 - portable_pow(spec_.betas[0], updates_)));
  scalars_.bias_correction2 = static_cast<float>(1 / (1 - portable_pow(spec_.betas[1], updates_)));
}

void Optimizer::update(kernels::KernelSet& kernels, States& states, int unit, double scale,
                       const kernels::OptimizerScalars* scalars) {
  const bool is_rounded = states.layout().has_copies(unit, states.at());
  const std::vector<int>& params = states.layout().unit(unit).tensors;
  tensors_.clear();
  tensors_.reserve(params.size());
  for (const int param : params) {
    if (states.owned(param).size() == 0) continue;
    const bool decays = model_.params[static_cast<size_t>(param)].decay == DecayClass::kDecay;
    const kernels::GradientSum sums = states.owned_sums_of(param).from(0);
    const kernels::StepGradient gradient =
        is_rounded ? kernels::StepGradient{.rounded = states.rounded_of(param).data()}
                   : kernels::StepGradient{.sums = sums.exact, .scale = scale, .rounded = sums.sum};
    tensors_.push_back({.count = states.owned(param).size(),
                        .beta1 = static_cast<float>(spec_.betas[0]),
                        .beta2 = static_cast<float>(spec_.betas[1]),
                        .epsilon = static_cast<float>(spec_.epsilon),
                        .weight_decay = decays ? static_cast<float>(spec_.weight_decay) : 0.0F,
                        .gradient = gradient,
                        .parameter = states.master(param).data(),
                        .m = states.m(param).data(),
                        .v = states.v(param).data(),
                        .bf16_copy = states.weights().owned_bf16(param),
                        .scalars = scalars});
  }
  kernels.adamw(tensors_);
}

}  // namespace trainyard::engine

#include "worker/optim/optimizer.h"

#include <algorithm>
#include <cmath>

#include "common/math/portable.h"
#include "worker/optim/schedule.h"

namespace trainyard::engine {
namespace {

int64_t norm_blocks(const ParamSpec& param) {
  return (param.elements() + kernels::kNormBlockElements - 1) / kernels::kNormBlockElements;
}

}  // namespace

Optimizer::Optimizer(const api::OptimizerSpec& spec, const api::LearningRateSchedule& schedule,
                     int64_t total_updates, const Model& model)
    : spec_(spec), schedule_(schedule), total_updates_(total_updates), model_(model) {
  int64_t blocks = 0;
  for (const ParamSpec& param : model.params)
    blocks = std::max(blocks, norm_blocks(param));
  block_sums_.resize(static_cast<size_t>(blocks));
}

double loss_total(const ControlWord& control) {
  constexpr int kFiner = kernels::kLossQuantumLog2 - kernels::kCoarseLossQuantumLog2;
  const auto coarse = static_cast<uint64_t>(control.coarse_loss_sum) << kFiner;
  const uint64_t rest = static_cast<uint64_t>(control.loss_sum) - coarse;
  const auto quanta =
      (static_cast<__int128>(control.coarse_loss_sum) << kFiner) + static_cast<__int128>(rest);
  return std::ldexp(static_cast<double>(quanta), -kernels::kLossQuantumLog2);
}

/// Block sums of every parameter once, in ascending order of global name: the same double for every
/// layout, because no shard cuts a block and the order is fixed.
double Optimizer::gradient_norm(kernels::KernelSet& kernels, ParameterStore& store) {
  double total = 0;
  for (const int param : store.name_order()) {
    const auto gradient = store.gradient(param);
    kernels.sum_of_squares({.count = static_cast<int64_t>(gradient.size()),
                            .x = gradient.data(),
                            .block_sums = block_sums_.data()});
    const int64_t blocks = norm_blocks(model_.params[static_cast<size_t>(param)]);
    for (int64_t b = 0; b < blocks; ++b)
      total += block_sums_[static_cast<size_t>(b)];
  }
  return std::sqrt(total);
}

void Optimizer::finish(double norm, const ControlWord& control) {
  scalars_.gradient_norm = norm;
  scalars_.skip = control.overflow != 0 || !std::isfinite(norm) ? 1 : 0;
  scalars_.clip_scale = 1;
  if (spec_.gradient_clip > 0) {
    // PyTorch's clip_grad_norm_ adds 1e-6 to the norm; parity with it is part of the contract.
    scalars_.clip_scale = static_cast<float>(std::min(1.0, spec_.gradient_clip / (norm + 1e-6)));
  }
  scalars_.learning_rate =
      static_cast<float>(learning_rate(schedule_, spec_.learning_rate, total_updates_, updates_));
  if (scalars_.skip != 0) return;
  ++updates_;
  scalars_.bias_correction1 = static_cast<float>(1 / (1 - portable_pow(spec_.betas[0], updates_)));
  scalars_.bias_correction2 = static_cast<float>(1 / (1 - portable_pow(spec_.betas[1], updates_)));
}

void Optimizer::step(kernels::KernelSet& kernels, ParameterStore& store,
                     const ControlWord& control) {
  finish(gradient_norm(kernels, store), control);
  for (const int param : store.name_order()) {
    const bool decays = model_.params[static_cast<size_t>(param)].decay == DecayClass::kDecay;
    kernels.adamw({.count = static_cast<int64_t>(store.master(param).size()),
                   .beta1 = static_cast<float>(spec_.betas[0]),
                   .beta2 = static_cast<float>(spec_.betas[1]),
                   .epsilon = static_cast<float>(spec_.epsilon),
                   .weight_decay = decays ? static_cast<float>(spec_.weight_decay) : 0.0F,
                   .gradient = store.gradient(param).data(),
                   .parameter = store.master(param).data(),
                   .m = store.m(param).data(),
                   .v = store.v(param).data(),
                   .bf16_copy = store.bf16_copy(param),
                   .scalars = &scalars_});
  }
}

}  // namespace trainyard::engine

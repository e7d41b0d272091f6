#include "worker/job/early_stop.h"

#include <cmath>

#include "worker/checkpoint/manifest.h"

namespace trainyard::engine {
namespace {

using checkpoint::kBestLossScalar;
using checkpoint::kBestStepScalar;

constexpr char kJudgedStepScalar[] = "evaluatedStep";
constexpr char kWithoutImprovementScalar[] = "evaluationsWithoutImprovement";

}  // namespace

bool EarlyStop::judge(int64_t step, double loss) {
  if (!is_on() || step <= judged_step_) return false;
  judged_step_ = step;
  const bool lower = std::isfinite(loss) && (best_step_ < 0 || loss < best_loss_ - delta_);
  without_improvement_ = lower ? 0 : without_improvement_ + 1;
  if (!lower) return false;
  best_loss_ = loss;
  best_step_ = step;
  return true;
}

void EarlyStop::store(checkpoint::Scalars& scalars) const {
  if (!is_on() || judged_step_ < 0) return;
  scalars[kJudgedStepScalar] = judged_step_;
  scalars[kWithoutImprovementScalar] = without_improvement_;
  if (best_step_ < 0) return;
  scalars[kBestStepScalar] = best_step_;
  scalars[kBestLossScalar] = best_loss_;
}

Status EarlyStop::restore(const checkpoint::Scalars& scalars) {
  begin_at(-1);
  if (!scalars.contains(kJudgedStepScalar)) return {};
  TRAINYARD_ASSIGN(judged_step_, checkpoint::scalar_int64(scalars, kJudgedStepScalar));
  TRAINYARD_ASSIGN(without_improvement_,
                   checkpoint::scalar_int64(scalars, kWithoutImprovementScalar));
  if (!scalars.contains(kBestStepScalar)) return {};
  TRAINYARD_ASSIGN(best_step_, checkpoint::scalar_int64(scalars, kBestStepScalar));
  TRAINYARD_ASSIGN(best_loss_, checkpoint::scalar_double(scalars, kBestLossScalar));
  return {};
}

void EarlyStop::begin_at(int64_t step) {
  best_loss_ = std::numeric_limits<double>::infinity();
  best_step_ = -1;
  judged_step_ = step;
  without_improvement_ = 0;
}

}  // namespace trainyard::engine

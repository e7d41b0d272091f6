#include "worker/model/rope_table.h"

#include <algorithm>
#include <cmath>

#include "common/math/portable.h"

namespace trainyard::engine {
namespace {

constexpr double kPi = 3.14159265358979323846;

/// YaRN (Peng et al. 2023): pairs that turn often keep their frequency, those that turn less than
/// once over the original positions are slowed down, between them it goes over linearly.
class YarnRamp {
 public:
  YarnRamp(const api::RopeScaling& scaling, double theta, int64_t head_dim)
      : scaling_(scaling), theta_(theta), head_dim_(static_cast<double>(head_dim)) {
    double low = pair_that_turns(scaling.beta_fast);
    double high = pair_that_turns(scaling.beta_slow);
    if (scaling.truncate) {
      low = std::floor(low);
      high = std::ceil(high);
    }
    low_ = std::max(low, 0.0);
    high_ = std::min(high, head_dim_ - 1);
    if (low_ == high_) high_ += 0.001;  // as there
  }
  /// How much of a pair's frequency is slowed down, 0 to 1.
  double at(int64_t pair) const {
    return std::clamp((static_cast<double>(pair) - low_) / (high_ - low_), 0.0, 1.0);
  }

 private:
  double pair_that_turns(double times) const {
    const double length = static_cast<double>(scaling_.original_positions) / (times * 2 * kPi);
    return head_dim_ * portable_log(length) / (2 * portable_log(theta_));
  }
  const api::RopeScaling& scaling_;
  double theta_;
  double head_dim_;
  double low_ = 0;
  double high_ = 0;
};

double llama3(const api::RopeScaling& scaling, double frequency) {
  const double turns = static_cast<double>(scaling.original_positions) * frequency / (2 * kPi);
  if (turns > scaling.high_frequency_factor) return frequency;
  if (turns < scaling.low_frequency_factor) return frequency / scaling.factor;
  const double kept = (turns - scaling.low_frequency_factor) /
                      (scaling.high_frequency_factor - scaling.low_frequency_factor);
  return (1 - kept) * frequency / scaling.factor + kept * frequency;
}

}  // namespace

RopeTable rope_table(const api::ModelSpec& spec) {
  const int64_t head_dim = api::head_dim_of(spec);
  const double theta = spec.rope_theta.value_or(api::kRopeTheta);
  RopeTable table;
  for (int64_t pair = 0; pair < head_dim / 2; ++pair) {
    const double exponent = -2.0 * static_cast<double>(pair) / static_cast<double>(head_dim);
    double frequency = portable_exp(exponent * portable_log(theta));
    if (spec.rope_scaling) {
      const api::RopeScaling& scaling = *spec.rope_scaling;
      switch (scaling.type) {
        case api::RopeScalingType::kLinear:
          frequency /= scaling.factor;
          break;
        case api::RopeScalingType::kLlama3:
          frequency = llama3(scaling, frequency);
          break;
        case api::RopeScalingType::kYarn: {
          const double slowed = YarnRamp(scaling, theta, head_dim).at(pair);
          frequency = frequency / scaling.factor * slowed + frequency * (1 - slowed);
          break;
        }
      }
    }
    table.frequencies.push_back(static_cast<float>(frequency));
  }
  if (spec.rope_scaling && spec.rope_scaling->type == api::RopeScalingType::kYarn) {
    const api::RopeScaling& scaling = *spec.rope_scaling;
    const double stretched = scaling.factor > 1 ? 0.1 * portable_log(scaling.factor) + 1 : 1;
    table.scale = static_cast<float>(scaling.attention_factor.value_or(stretched));
  }
  return table;
}

}  // namespace trainyard::engine

#include "operator/cache/backoff.h"

#include <algorithm>
#include <utility>

namespace trainyard::cache {

Backoff::Backoff(const Options& options, std::function<double()> random)
    : options_(options), random_(std::move(random)), step_(options.initial) {}

Duration Backoff::next(MonoTime now) {
  if (failed_ && now - last_ > options_.reset) step_ = options_.initial;
  failed_ = true;
  last_ = now;
  const Duration step = step_;
  step_ = std::min(step_ * 2, options_.max);
  return step + Duration(static_cast<Duration::rep>(static_cast<double>(step.count()) *
                                                    options_.jitter * random_()));
}

}  // namespace trainyard::cache

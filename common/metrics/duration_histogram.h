#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/time.h"
#include "common/metrics/exposition.h"

namespace trainyard::metrics {

/// How long things took, by bucket: what a histogram series is exported from. Not thread-safe.
class DurationHistogram {
 public:
  /// `bounds_seconds`: upper bounds, ascending; they must outlive this (constants).
  explicit DurationHistogram(std::span<const double> bounds_seconds)
      : bounds_(bounds_seconds), counts_(bounds_seconds.size() + 1, 0) {}

  void observe(Duration duration) {
    const double seconds = std::chrono::duration<double>(duration).count();
    const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), seconds);
    ++counts_[static_cast<size_t>(bucket - bounds_.begin())];
    sum_ += std::max(seconds, 0.0);
  }

  int64_t count() const {
    int64_t total = 0;
    for (const int64_t one : counts_)
      total += one;
    return total;
  }

  /// A view of this, valid until the next observe.
  HistogramValue value() const { return {bounds_, counts_, sum_}; }

 private:
  std::span<const double> bounds_;
  std::vector<int64_t> counts_;
  double sum_ = 0;
};

}  // namespace trainyard::metrics

#include "operator/cluster/parallel_calls.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace trainyard::cluster {
namespace {

/// What a call throws is its error: on a thread of its own it would end the process.
Status guarded(const std::function<Status(int64_t)>& call, int64_t i) {
  try {
    return call(i);
  } catch (const std::exception& error) {
    return Error{ErrorCode::kInternal, error.what()};
  }
}

/// What is beyond the share looks so often whether it still is.
constexpr std::chrono::milliseconds kStandAside{10};

/// `call` for [first, last) on `width` threads, this one among them; the others stand aside while
/// they are beyond the share.
Status run_wide(int64_t first, int64_t last, int64_t width, const std::function<int64_t()>& share,
                const std::function<Status(int64_t)>& call) {
  std::atomic<int64_t> next = first;
  std::mutex mutex;
  std::optional<Error> error;
  const auto work = [&](int64_t worker) {
    while (next < last) {
      if (worker > 0 && share && worker >= share()) {
        std::this_thread::sleep_for(kStandAside);
        continue;
      }
      const int64_t i = next++;
      if (i >= last) return;
      Status done = guarded(call, i);
      if (done) continue;
      next = last;
      const std::lock_guard lock(mutex);
      if (!error) error = std::move(done).error();
    }
  };
  {
    std::vector<std::jthread> helpers;
    try {
      for (int64_t i = 1; i < width; ++i)
        helpers.emplace_back(work, i);
    } catch (const std::system_error&) {
      // No more threads are to be had, as under a limit of processes: fewer do it as well.
    }
    work(0);
  }
  if (error) return *std::move(error);
  return {};
}

}  // namespace

Status slow_start(int64_t count, CallWidth width, const std::function<Status(int64_t)>& call) {
  int64_t wide = std::max<int64_t>(width.first, 1);
  for (int64_t first = 0; first < count;) {
    const int64_t left = count - first;
    const bool full = wide >= width.most;
    const int64_t batch = full ? left : std::min(wide, left);
    TRAINYARD_TRY(
        run_wide(first, first + batch, std::min({wide, width.most, batch}), width.share, call));
    first += batch;
    wide *= 2;
  }
  return {};
}

PacedCalls::Precedence::~Precedence() {
  if (calls_ == nullptr) return;
  calls_->last_preceded_ = calls_->clock_.mono();
  --calls_->preceding_;
}

PacedCalls::Precedence PacedCalls::precede(int64_t pods) {
  if (pods > kLarge) return Precedence(nullptr);
  ++preceding_;
  return Precedence(this);
}

int64_t PacedCalls::share(bool large) const {
  const int64_t fair = std::max<int64_t>(1, most_ / runs_);
  if (!large) return fair;
  const bool aside = preceding_ > 0 || clock_.mono() < last_preceded_.load() + kNextCall;
  return aside ? std::min(fair, kAside) : fair;
}

Status PacedCalls::run(int64_t count, const std::function<Status(int64_t)>& call) {
  if (count == 0) return {};
  const int64_t refusals = refusals_;
  const int64_t first = first_;
  const Precedence before_large_runs = precede(count);
  ++runs_;
  const auto share = [this, large = count > kLarge] { return this->share(large); };
  const Status done = slow_start(count, {first, most_, share}, call);
  --runs_;
  const bool well = done.has_value() && refusals == refusals_;
  first_ = well ? std::min(most_, std::max(first, count)) : 1;
  return done;
}

}  // namespace trainyard::cluster

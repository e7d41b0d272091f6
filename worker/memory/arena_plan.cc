#include "worker/memory/arena_plan.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>
#include <utility>

#include "common/base/check.h"

namespace trainyard::engine {
namespace {

/// How often an order is improved: more found nothing better in plans of many models.
constexpr int kImprovements = 16;

/// A plan this close to the lower bound is good enough: 1 / kGoodEnough of it above.
constexpr int64_t kGoodEnough = 100;

/// How often an order is shuffled where none of those is good enough.
constexpr int kShuffles = 400;

/// A plan this far above the bound is shuffled more often.
constexpr int64_t kTooFar = 50;
constexpr int kMoreShuffles = 4000;

}  // namespace

int ArenaPlanner::add(int64_t bytes) {
  buffers_.push_back({.bytes = arena_aligned(bytes), .neighbours = {}});
  return static_cast<int>(buffers_.size()) - 1;
}

void ArenaPlanner::begin(int buffer) {
  Buffer& born = buffers_[static_cast<size_t>(buffer)];
  if (born.alive || born.bytes == 0) return;
  born.alive = true;
  born.begun = now_;
  for (const int other : alive_) {
    born.neighbours.push_back(other);
    buffers_[static_cast<size_t>(other)].neighbours.push_back(buffer);
  }
  alive_.push_back(buffer);
  live_bytes_ += born.bytes;
  live_bytes_max_ = std::max(live_bytes_max_, live_bytes_);
}

void ArenaPlanner::end(int buffer) {
  Buffer& dead = buffers_[static_cast<size_t>(buffer)];
  if (dead.bytes == 0) return;
  TRAINYARD_CHECK(dead.alive);
  dead.alive = false;
  dead.life += now_ - dead.begun + 1;
  live_bytes_ -= dead.bytes;
  alive_.erase(std::find(alive_.begin(), alive_.end(), buffer));
}

ArenaPlan ArenaPlanner::place(const std::vector<int>& order) const {
  ArenaPlan plan;
  plan.offsets.assign(buffers_.size(), 0);
  std::vector<bool> placed(buffers_.size());
  std::vector<std::pair<int64_t, int64_t>> taken;  // offset and end
  for (const int index : order) {
    const Buffer& buffer = buffers_[static_cast<size_t>(index)];
    taken.clear();
    for (const int other : buffer.neighbours) {
      if (!placed[static_cast<size_t>(other)]) continue;
      const int64_t begin = plan.offsets[static_cast<size_t>(other)];
      taken.emplace_back(begin, begin + buffers_[static_cast<size_t>(other)].bytes);
    }
    std::sort(taken.begin(), taken.end());
    int64_t offset = 0;
    for (const auto& [begin, end] : taken) {
      if (begin >= offset + buffer.bytes) break;
      offset = std::max(offset, end);
    }
    plan.offsets[static_cast<size_t>(index)] = offset;
    plan.total_bytes = std::max(plan.total_bytes, offset + buffer.bytes);
    placed[static_cast<size_t>(index)] = true;
  }
  return plan;
}

ArenaPlan ArenaPlanner::plan() const {
  std::vector<int> lived;
  for (int index = 0; index < static_cast<int>(buffers_.size()); ++index) {
    const Buffer& buffer = buffers_[static_cast<size_t>(index)];
    if (buffer.alive || buffer.life > 0) lived.push_back(index);
  }
  const auto life = [this](const Buffer& b) { return b.life + (b.alive ? now_ - b.begun + 1 : 0); };
  // No greedy order is best for every program, and planning is cheap: take the best of three.
  const std::function<int64_t(const Buffer&)> sizes[] = {
      [](const Buffer& b) { return b.bytes; }, [&](const Buffer& b) { return life(b); },
      [&](const Buffer& b) { return life(b) * b.bytes; }};
  ArenaPlan best{.offsets = std::vector<int64_t>(buffers_.size())};
  std::vector<int> best_order;
  // One as good is taken too: a way across a plain.
  const auto take_if_good = [&](ArenaPlan plan, const std::vector<int>& order) {
    if (best.total_bytes != 0 && plan.total_bytes > best.total_bytes) return;
    best = std::move(plan);
    best_order = order;
  };
  for (const auto& size : sizes) {
    std::vector<int> order = lived;
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      return size(buffers_[static_cast<size_t>(a)]) > size(buffers_[static_cast<size_t>(b)]);
    });
    for (int round = 0; round <= kImprovements && !order.empty(); ++round) {
      ArenaPlan plan = place(order);
      const auto highest = std::find_if(order.begin(), order.end(), [&](int index) {
        const auto i = static_cast<size_t>(index);
        return plan.offsets[i] + buffers_[i].bytes == plan.total_bytes;
      });
      std::vector<int> next = order;
      std::rotate(next.begin(), next.begin() + (highest - order.begin()),
                  next.begin() + (highest - order.begin()) + 1);
      take_if_good(std::move(plan), order);
      if (best.total_bytes == live_bytes_max_) break;
      order = std::move(next);
    }
  }
  // Two buffers change places, again and again, from the best order so far: the same every time.
  std::minstd_rand random;
  for (int round = 0; round < kMoreShuffles && best_order.size() > 1; ++round) {
    const int64_t enough = round < kShuffles ? kGoodEnough : kTooFar;
    if ((best.total_bytes - live_bytes_max_) * enough <= live_bytes_max_) break;
    std::vector<int> order = best_order;
    std::swap(order[random() % order.size()], order[random() % order.size()]);
    take_if_good(place(order), order);
  }
  best.live_bytes_max = live_bytes_max_;
  return best;
}

ArenaPlan plan_arena(const std::vector<BufferRequest>& requests) {
  std::vector<int> by_first(requests.size());
  std::iota(by_first.begin(), by_first.end(), 0);
  std::vector<int> by_last = by_first;
  const auto request = [&](int index) -> const BufferRequest& {
    return requests[static_cast<size_t>(index)];
  };
  std::stable_sort(by_first.begin(), by_first.end(),
                   [&](int a, int b) { return request(a).first < request(b).first; });
  std::stable_sort(by_last.begin(), by_last.end(),
                   [&](int a, int b) { return request(a).last < request(b).last; });
  ArenaPlanner planner;
  for (const BufferRequest& each : requests)
    planner.add(each.bytes);
  int event = 0;
  auto born = by_first.begin();
  for (const int dying : by_last) {
    // All that is born before something dies, in the order of events.
    for (; born != by_first.end() && request(*born).first <= request(dying).last; ++born) {
      for (; event < request(*born).first; ++event)
        planner.tick();
      planner.begin(*born);
    }
    for (; event < request(dying).last; ++event)
      planner.tick();
    planner.end(dying);
  }
  return planner.plan();
}

}  // namespace trainyard::engine

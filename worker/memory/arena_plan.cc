#include "worker/memory/arena_plan.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>

namespace trainyard::engine {
namespace {

int64_t align_up(int64_t bytes) {
  return (bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
}

int64_t live_maximum(const std::vector<BufferRequest>& requests) {
  std::map<int, int64_t> change;
  for (const BufferRequest& request : requests) {
    change[request.first] += align_up(request.bytes);
    change[request.last + 1] -= align_up(request.bytes);
  }
  int64_t live = 0;
  int64_t maximum = 0;
  for (const auto& [event, delta] : change) {
    live += delta;
    maximum = std::max(maximum, live);
  }
  return maximum;
}

struct Placed {
  int64_t offset;
  int64_t bytes;
  int first;
  int last;
};

/// Places the requests in this order, each at the lowest offset that fits.
ArenaPlan place(const std::vector<BufferRequest>& requests, const std::vector<size_t>& order) {
  ArenaPlan plan;
  plan.offsets.resize(requests.size(), 0);
  std::vector<Placed> placed;  // ascending by offset
  for (const size_t index : order) {
    const BufferRequest& request = requests[index];
    const int64_t bytes = align_up(request.bytes);
    int64_t offset = 0;
    for (const Placed& other : placed) {
      if (other.first > request.last || other.last < request.first) continue;
      if (other.offset >= offset + bytes) break;
      offset = std::max(offset, other.offset + other.bytes);
    }
    plan.offsets[index] = offset;
    plan.total_bytes = std::max(plan.total_bytes, offset + bytes);
    const Placed entry{offset, bytes, request.first, request.last};
    placed.insert(
        std::upper_bound(placed.begin(), placed.end(), entry,
                         [](const Placed& a, const Placed& b) { return a.offset < b.offset; }),
        entry);
  }
  return plan;
}

/// Requests cut where nothing is alive: each part is planned by itself over the same memory, so
/// that a step of many micro-batches costs no more than they do one by one.
std::vector<std::vector<size_t>> disjoint_parts(const std::vector<BufferRequest>& requests) {
  std::vector<size_t> by_birth(requests.size());
  std::iota(by_birth.begin(), by_birth.end(), size_t{0});
  std::stable_sort(by_birth.begin(), by_birth.end(),
                   [&](size_t a, size_t b) { return requests[a].first < requests[b].first; });
  std::vector<std::vector<size_t>> parts;
  int last = 0;
  for (const size_t index : by_birth) {
    if (parts.empty() || requests[index].first > last) parts.emplace_back();
    last = parts.back().empty() ? requests[index].last : std::max(last, requests[index].last);
    parts.back().push_back(index);
  }
  return parts;
}

using Less = std::function<bool(const BufferRequest&, const BufferRequest&)>;

/// The best of three orders for one part.
ArenaPlan plan_part(const std::vector<BufferRequest>& requests) {
  // No greedy order is best for every program, and planning is cheap: take the best of three.
  const auto life = [](const BufferRequest& r) { return r.last - r.first; };
  const Less orders[] = {
      [](const BufferRequest& a, const BufferRequest& b) { return a.bytes > b.bytes; },
      [&](const BufferRequest& a, const BufferRequest& b) { return life(a) > life(b); },
      [&](const BufferRequest& a, const BufferRequest& b) {
        return (life(a) + 1) * a.bytes > (life(b) + 1) * b.bytes;
      }};
  ArenaPlan best;
  for (const Less& less : orders) {
    std::vector<size_t> order(requests.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return less(requests[a], requests[b]); });
    ArenaPlan plan = place(requests, order);
    if (best.offsets.empty() || plan.total_bytes < best.total_bytes) best = std::move(plan);
  }
  return best;
}

}  // namespace

ArenaPlan plan_arena(const std::vector<BufferRequest>& requests) {
  ArenaPlan plan;
  plan.offsets.resize(requests.size(), 0);
  for (const std::vector<size_t>& part : disjoint_parts(requests)) {
    std::vector<BufferRequest> own;
    for (const size_t index : part)
      own.push_back(requests[index]);
    const ArenaPlan planned = plan_part(own);
    for (size_t i = 0; i < part.size(); ++i)
      plan.offsets[part[i]] = planned.offsets[i];
    plan.total_bytes = std::max(plan.total_bytes, planned.total_bytes);
  }
  plan.live_bytes_max = live_maximum(requests);
  return plan;
}

}  // namespace trainyard::engine

#include "worker/job/owned_parts.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

namespace trainyard::engine {
namespace {

/// Values by shard rank that are equal over ranges of them.
class Steps {
 public:
  explicit Steps(int ranks) : change_(static_cast<size_t>(ranks) + 1) {}
  void add(int64_t begin, int64_t end, int64_t value) {
    change_[static_cast<size_t>(begin)] += value;
    change_[static_cast<size_t>(end)] -= value;
  }
  std::vector<int64_t> values() const {
    std::vector<int64_t> found(change_.size() - 1);
    std::partial_sum(change_.begin(), change_.end() - 1, found.begin());
    return found;
  }

 private:
  std::vector<int64_t> change_;
};

/// All parts but the last ones are as large as the first. 0 where it is not held.
int64_t part_of(const layout::Layout& layout, int unit, int pp) {
  return layout.shard(unit, {.pp = pp}).size();
}

}  // namespace

std::vector<int64_t> owned_bytes(const layout::Layout& layout, int shard_ranks, int pp,
                                 const std::function<int64_t(int unit)>& bytes) {
  Steps sums(shard_ranks);
  for (int unit = 0; unit < layout.units(); ++unit) {
    const int64_t part = part_of(layout, unit, pp);
    if (part == 0) continue;
    const int64_t full = std::min<int64_t>(layout.elements(unit) / part, shard_ranks);
    sums.add(0, full, part * bytes(unit));
    const int64_t rest = layout.elements(unit) - full * part;
    if (rest > 0) sums.add(full, full + 1, rest * bytes(unit));
  }
  return sums.values();
}

std::vector<int64_t> stored_elements(const layout::Layout& layout, const layout::Mesh& mesh,
                                     const layout::Coordinate& at, int tensors) {
  // How many stretches of how many elements shard ranks own: those that a part cuts off by rank,
  // whole parts by ranges of ranks.
  // Copies that other stages hold come before or after those of this one.
  struct Kind {
    layout::Copies copies;  // of dp coordinate 0
    int stride = 1;         // to that of dp coordinate 1
    int64_t size = 0;
    int64_t rank = 0;  // 0 of whole parts
    auto operator<=>(const Kind& other) const {
      return std::tie(copies.count, copies.index, stride, size, rank) <=>
             std::tie(other.copies.count, other.copies.index, other.stride, other.size, other.rank);
    }
  };
  std::map<Kind, int64_t> ends;
  std::map<Kind, Steps> wholes;
  for (int tensor = 0; tensor < tensors; ++tensor) {
    const layout::Range place = layout.place(tensor);
    const int unit = layout.unit_of(tensor);
    const int64_t part = part_of(layout, unit, at.pp);
    if (place.size() == 0 || part == 0 || layout.repeats(tensor)) continue;
    const layout::Copies copies = layout.copies(unit, {.pp = at.pp, .cp = at.cp, .tp = at.tp});
    const int stride = mesh.cp * (layout.unit(unit).summed_over_tensor ? mesh.tp : 1);
    const int64_t first = place.begin / part;
    const int64_t last = (place.end - 1) / part;
    ++ends[{copies, stride, std::min(place.end, (first + 1) * part) - place.begin, first}];
    if (last == first) continue;
    ++ends[{copies, stride, place.end - last * part, last}];
    wholes.try_emplace({copies, stride, part}, mesh.fsdp).first->second.add(first + 1, last, 1);
  }
  std::vector<int64_t> stored(static_cast<size_t>(mesh.dp) * static_cast<size_t>(mesh.fsdp));
  const auto add = [&](int copy, int64_t rank, const Kind& kind, int64_t count) {
    const layout::Range share =
        layout::even_share(kind.size, kind.copies.count, kind.copies.index + copy * kind.stride);
    stored[static_cast<size_t>(int64_t{copy} * mesh.fsdp + rank)] += count * share.size();
  };
  for (const auto& [kind, steps] : wholes) {
    const std::vector<int64_t> counts = steps.values();
    for (int copy = 0; copy < mesh.dp; ++copy) {
      for (int rank = 0; rank < mesh.fsdp; ++rank)
        add(copy, rank, kind, counts[static_cast<size_t>(rank)]);
    }
  }
  for (const auto& [end, count] : ends) {
    for (int copy = 0; copy < mesh.dp; ++copy)
      add(copy, end.rank, end, count);
  }
  return stored;
}

}  // namespace trainyard::engine

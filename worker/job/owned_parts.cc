#include "worker/job/owned_parts.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

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

/// All parts but the last ones are as large as the first.
int64_t part_of(const layout::Layout& layout, int unit) {
  return layout.shard(unit, layout::Coordinate{}).size();
}

}  // namespace

std::vector<int64_t> owned_bytes(const layout::Layout& layout, int shard_ranks,
                                 const std::function<int64_t(int unit)>& bytes) {
  Steps sums(shard_ranks);
  for (int unit = 0; unit < layout.units(); ++unit) {
    const int64_t part = part_of(layout, unit);
    if (part == 0) continue;
    const int64_t full = std::min<int64_t>(layout.elements(unit) / part, shard_ranks);
    sums.add(0, full, part * bytes(unit));
    const int64_t rest = layout.elements(unit) - full * part;
    if (rest > 0) sums.add(full, full + 1, rest * bytes(unit));
  }
  return sums.values();
}

std::vector<int64_t> stored_elements(const layout::Layout& layout, const layout::Mesh& mesh,
                                     int tensors) {
  // How many stretches of how many elements shard ranks own: those that a part cuts off by rank,
  // whole parts by ranges of ranks.
  std::map<std::pair<int64_t, int64_t>, int64_t> ends;  // by rank and size
  std::map<int64_t, Steps> wholes;                      // by size
  for (int tensor = 0; tensor < tensors; ++tensor) {
    const layout::Range place = layout.place(tensor);
    if (place.size() == 0) continue;
    const int64_t part = part_of(layout, layout.unit_of(tensor));
    const int64_t first = place.begin / part;
    const int64_t last = (place.end - 1) / part;
    ++ends[{first, std::min(place.end, (first + 1) * part) - place.begin}];
    if (last == first) continue;
    ++ends[{last, place.end - last * part}];
    wholes.try_emplace(part, mesh.fsdp).first->second.add(first + 1, last, 1);
  }
  std::vector<int64_t> stored(static_cast<size_t>(mesh.dp) * static_cast<size_t>(mesh.fsdp));
  const auto add = [&](int copy, int64_t rank, int64_t size, int64_t count) {
    stored[static_cast<size_t>(copy * mesh.fsdp + rank)] +=
        count * layout::even_share(size, mesh.dp, copy).size();
  };
  for (const auto& [size, steps] : wholes) {
    const std::vector<int64_t> counts = steps.values();
    for (int copy = 0; copy < mesh.dp; ++copy) {
      for (int rank = 0; rank < mesh.fsdp; ++rank)
        add(copy, rank, size, counts[static_cast<size_t>(rank)]);
    }
  }
  for (const auto& [end, count] : ends) {
    for (int copy = 0; copy < mesh.dp; ++copy)
      add(copy, end.first, end.second, count);
  }
  return stored;
}

}  // namespace trainyard::engine

#include "worker/state/states.h"

namespace trainyard::engine {

Result<std::unique_ptr<States>> States::create(const layout::Layout& layout, int data_rank,
                                               Weights& weights, MemorySource& memory) {
  auto states = std::unique_ptr<States>(new States(layout, data_rank, weights));
  int64_t sums = 0;
  for (int unit = 0; unit < layout.units(); ++unit) {
    states->sums_offset_.push_back(sums);
    states->shard_offset_.push_back(states->owned_);
    states->master_offset_.push_back(states->masters_);
    const int64_t owned = layout.shard(unit, data_rank).size();
    sums += layout.elements(unit);
    states->owned_ += owned;
    if (weights.unit_dtype(unit) != DType::kFloat32) states->masters_ += owned;
  }
  TRAINYARD_ASSIGN(states->block_,
                   memory.allocate(states->accumulator_bytes() + states->moment_bytes() +
                                   states->master_bytes()));
  std::byte* const begin = states->block_->bytes().data();
  states->accumulator_ = reinterpret_cast<int64_t*>(begin);
  states->m_ = reinterpret_cast<float*>(begin + states->accumulator_bytes());
  states->v_ = states->m_ + states->owned_;
  states->master_ = states->v_ + states->owned_;
  return states;
}

/// `offsets`: by unit, where its part begins in `base`.
std::span<float> States::part(float* base, const std::vector<int64_t>& offsets, int param) const {
  const int unit = layout_.unit_of(param);
  const layout::Range range = owned(param);
  if (range.size() == 0) return {};
  const int64_t in_part =
      layout_.place(param).begin + range.begin - layout_.shard(unit, data_rank_).begin;
  return {base + offsets[static_cast<size_t>(unit)] + in_part, static_cast<size_t>(range.size())};
}

std::span<float> States::master(int param) {
  if (weights_.dtype(param) != DType::kFloat32) return part(master_, master_offset_, param);
  const layout::Range range = owned(param);
  return weights_.fp32(param).subspan(static_cast<size_t>(range.begin),
                                      static_cast<size_t>(range.size()));
}

int64_t* States::accumulator(int param) {
  return accumulators(layout_.unit_of(param)).data() + layout_.place(param).begin;
}

std::span<int64_t> States::accumulators(int unit) {
  return {accumulator_ + sums_offset_[static_cast<size_t>(unit)],
          static_cast<size_t>(layout_.elements(unit))};
}

}  // namespace trainyard::engine

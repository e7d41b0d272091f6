#include "worker/state/states.h"

#include "common/base/check.h"

namespace trainyard::engine {

Result<std::unique_ptr<States>> States::create(const layout::Layout& layout,
                                               const layout::Coordinate& at, Weights& weights,
                                               MemorySource& memory, Purpose purpose) {
  auto states = std::unique_ptr<States>(new States(layout, at, weights, purpose));
  if (purpose == Purpose::kInfer) {
    states->sums_buffer_.resize(static_cast<size_t>(layout.units()));
    return states;
  }
  const bool cut = layout.sharding().sums;
  std::vector<int64_t> unit_offset;
  for (int unit = 0; unit < layout.units(); ++unit) {
    const layout::Range part = layout.shard(unit, at);
    unit_offset.push_back(states->sums_);
    states->sums_offset_.push_back(states->sums_ + (cut ? 0 : part.begin));
    states->shard_offset_.push_back(states->owned_);
    states->master_offset_.push_back(states->masters_);
    states->sums_ += cut ? part.size() : layout.elements(unit, at);
    states->owned_ += part.size();
    if (layout.unit(unit).dtype != DType::kFloat32) states->masters_ += part.size();
  }
  TRAINYARD_ASSIGN(states->block_, memory.allocate(states->sum_bytes() + states->moment_bytes() +
                                                   states->master_bytes()));
  std::byte* const begin = states->block_->bytes().data();
  states->sums_begin_ = reinterpret_cast<int64_t*>(begin);
  for (const int64_t offset : unit_offset)
    states->sums_buffer_.push_back(cut ? nullptr : states->sums_begin_ + offset);
  states->m_ = reinterpret_cast<float*>(begin + states->sum_bytes());
  states->v_ = states->m_ + states->owned_;
  states->master_ = states->v_ + states->owned_;
  return states;
}

/// `offsets`: by unit, where its part begins in `base`.
template <class T>
std::span<T> States::part(T* base, const std::vector<int64_t>& offsets, int param) const {
  TRAINYARD_CHECK(purpose_ == Purpose::kTrain);
  const int unit = layout_.unit_of(param);
  const layout::Range range = owned(param);
  if (range.size() == 0) return {};
  const int64_t in_part = layout_.place(param).begin + range.begin - layout_.shard(unit, at_).begin;
  return {base + offsets[static_cast<size_t>(unit)] + in_part, static_cast<size_t>(range.size())};
}

std::span<float> States::master(int param) {
  return weights_.dtype(param) == DType::kFloat32 ? weights_.owned_fp32(param)
                                                  : part(master_, master_offset_, param);
}

std::span<float> States::m(int param) { return part(m_, shard_offset_, param); }
std::span<float> States::v(int param) { return part(v_, shard_offset_, param); }

void States::lend(int unit, int64_t* buffer) {
  TRAINYARD_CHECK(layout_.sharding().sums);
  sums_buffer_[static_cast<size_t>(unit)] = buffer;
}

std::span<int64_t> States::sums(int unit) {
  int64_t* const buffer = sums_buffer_[static_cast<size_t>(unit)];
  TRAINYARD_CHECK(buffer != nullptr);
  return {buffer, static_cast<size_t>(layout_.elements(unit))};
}

std::span<int64_t> States::owned_sums(int unit) {
  return {sums_begin_ + sums_offset_[static_cast<size_t>(unit)],
          static_cast<size_t>(layout_.shard(unit, at_).size())};
}

std::span<int64_t> States::owned_sums_of(int param) {
  return part(sums_begin_, sums_offset_, param);
}

}  // namespace trainyard::engine

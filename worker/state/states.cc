#include "worker/state/states.h"

#include "common/base/check.h"

namespace trainyard::engine {

Result<std::unique_ptr<States>> States::create(const layout::Layout& layout,
                                               const layout::Coordinate& at, Weights& weights,
                                               MemorySource& memory, Purpose purpose, DType sums) {
  auto states = std::unique_ptr<States>(new States(layout, at, weights, purpose, sums));
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
  states->sums_begin_ = begin;
  for (const int64_t offset : unit_offset)
    states->sums_buffer_.push_back(cut ? nullptr : begin + offset * size_of(sums));
  states->m_ = reinterpret_cast<float*>(begin + states->sum_bytes());
  states->v_ = states->m_ + states->owned_;
  states->master_ = states->v_ + states->owned_;
  return states;
}

int64_t States::place_in_part(int param) const {
  return layout_.place(param).begin + owned(param).begin -
         layout_.shard(layout_.unit_of(param), at_).begin;
}

/// `offsets`: by unit, where its part begins in `base`.
template <class T>
std::span<T> States::part(T* base, const std::vector<int64_t>& offsets, int param) const {
  TRAINYARD_CHECK(purpose_ == Purpose::kTrain);
  const int unit = layout_.unit_of(param);
  const layout::Range range = owned(param);
  if (range.size() == 0) return {};
  return {base + offsets[static_cast<size_t>(unit)] + place_in_part(param),
          static_cast<size_t>(range.size())};
}

std::span<float> States::master(int param) {
  return weights_.dtype(param) == DType::kFloat32 ? weights_.owned_fp32(param)
                                                  : part(master_, master_offset_, param);
}

std::span<float> States::m(int param) { return part(m_, shard_offset_, param); }
std::span<float> States::v(int param) { return part(v_, shard_offset_, param); }

void States::lend(int unit, std::byte* buffer) {
  TRAINYARD_CHECK(layout_.sharding().sums);
  sums_buffer_[static_cast<size_t>(unit)] = buffer;
}

SumSpan States::sums(int unit) {
  std::byte* const buffer = sums_buffer_[static_cast<size_t>(unit)];
  TRAINYARD_CHECK(buffer != nullptr);
  return {buffer, layout_.elements(unit), sum_type_};
}

SumSpan States::owned_sums(int unit) {
  return {sums_begin_ + sums_offset_[static_cast<size_t>(unit)] * size_of(sum_type_),
          layout_.shard(unit, at_).size(), sum_type_};
}

SumSpan States::owned_sums_of(int param) {
  TRAINYARD_CHECK(purpose_ == Purpose::kTrain);
  const int64_t count = owned(param).size();
  if (count == 0) return {.type = sum_type_};
  const SumSpan unit = owned_sums(layout_.unit_of(param));
  return {unit.data + place_in_part(param) * size_of(sum_type_), count, sum_type_};
}

/// Of exact sums the first copy's share ends where the upper half begins, or before. The others'
/// shares begin at their own length or later, and twice that is where the lower half ends or behind
/// it.
std::span<float> States::rounded(int unit) {
  const SumSpan sums = owned_sums(unit);
  const bool is_behind = sum_type_ == DType::kInt64 && layout_.copies(unit, at_).index == 0;
  const auto count = static_cast<size_t>(sums.size);
  return {reinterpret_cast<float*>(sums.data) + (is_behind ? count : 0), count};
}

std::span<float> States::rounded_of(int param) {
  const int64_t count = owned(param).size();
  if (count == 0) return {};
  return rounded(layout_.unit_of(param))
      .subspan(static_cast<size_t>(place_in_part(param)), static_cast<size_t>(count));
}

}  // namespace trainyard::engine

#include "worker/checkpoint/compare.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "common/text/json_writer.h"
#include "worker/checkpoint/rectangle.h"

namespace trainyard::checkpoint {
namespace {

using Outcome = TensorComparison::Outcome;

/// Of one tensor read at a time, from each side.
constexpr int64_t kBlockBytes = 8 << 20;

std::string text_of(const Scalar& scalar) {
  if (const auto* text = std::get_if<std::string>(&scalar)) return text::quote_json(*text);
  if (const auto* number = std::get_if<double>(&scalar)) return text::shortest(*number);
  if (const auto* number = std::get_if<uint64_t>(&scalar)) return std::to_string(*number);
  return std::to_string(std::get<int64_t>(scalar));
}

std::string form_of(const TensorRecord& tensor) {
  std::string text = std::string(name_of(tensor.dtype)) + " [";
  for (size_t axis = 0; axis < tensor.shape.size(); ++axis)
    text += (axis > 0 ? "," : "") + std::to_string(tensor.shape[axis]);
  return text + "]";
}

std::vector<ScalarComparison> compare_scalars(const Manifest& a, const Manifest& b) {
  std::vector<ScalarComparison> compared = {
      {"step", std::to_string(a.step), std::to_string(b.step)},
      {"samplesConsumed", std::to_string(a.samples_consumed), std::to_string(b.samples_consumed)}};
  std::map<std::string, ScalarComparison> others;
  for (const auto& [name, scalar] : a.scalars)
    others[name].a = text_of(scalar);
  for (const auto& [name, scalar] : b.scalars)
    others[name].b = text_of(scalar);
  for (auto& [name, comparison] : others) {
    comparison.name = name;
    compared.push_back(std::move(comparison));
  }
  return compared;
}

/// Calls `take` with blocks of rows (axis 0) that make up the tensor.
template <class Take>
Status for_each_block(const TensorRecord& tensor, const Take& take) {
  Rectangle block{std::vector<int64_t>(tensor.shape.size(), 0), tensor.shape};
  if (tensor.shape.empty()) return take(block);
  const int64_t row = *checked_volume(std::span(tensor.shape).subspan(1)) * size_of(tensor.dtype);
  const int64_t rows = std::max<int64_t>(1, kBlockBytes / std::max<int64_t>(1, row));
  for (int64_t first = 0; first < tensor.shape[0]; first += rows) {
    block.offset[0] = first;
    block.shape[0] = std::min(rows, tensor.shape[0] - first);
    TRAINYARD_TRY(take(block));
  }
  return {};
}

void add_float_difference(std::span<const std::byte> a, std::span<const std::byte> b,
                          TensorComparison& comparison) {
  float x = 0;
  float y = 0;
  std::memcpy(&x, a.data(), sizeof x);
  std::memcpy(&y, b.data(), sizeof y);
  if (!std::isfinite(x) || !std::isfinite(y)) {
    ++comparison.not_finite;
    return;
  }
  const double absolute = std::abs(static_cast<double>(x) - static_cast<double>(y));
  const double scale = std::max(std::abs(static_cast<double>(x)), std::abs(static_cast<double>(y)));
  comparison.absolute_max = std::max(comparison.absolute_max.value_or(0), absolute);
  comparison.relative_max =
      std::max(comparison.relative_max.value_or(0), scale > 0 ? absolute / scale : 0);
}

void compare_block(DType dtype, std::span<const std::byte> a, std::span<const std::byte> b,
                   TensorComparison& comparison) {
  if (std::memcmp(a.data(), b.data(), a.size()) == 0) return;
  comparison.outcome = Outcome::kDifferent;
  const auto element = static_cast<size_t>(size_of(dtype));
  for (size_t at = 0; at < a.size(); at += element) {
    if (std::memcmp(a.data() + at, b.data() + at, element) == 0) continue;
    ++comparison.elements_different;
    if (dtype == DType::kFloat32) {
      add_float_difference(a.subspan(at, element), b.subspan(at, element), comparison);
    }
  }
}

Result<TensorComparison> compare_tensor(CheckpointReader& a, CheckpointReader& b,
                                        const TensorRecord* in_a, const TensorRecord* in_b) {
  const TensorRecord& either = in_a != nullptr ? *in_a : *in_b;
  TensorComparison comparison{either.name, either.kind};
  comparison.elements = *checked_volume(either.shape);
  if (in_a == nullptr || in_b == nullptr) {
    comparison.outcome = in_a != nullptr ? Outcome::kOnlyInA : Outcome::kOnlyInB;
    return comparison;
  }
  if (in_a->dtype != in_b->dtype || in_a->shape != in_b->shape) {
    comparison.outcome = Outcome::kOtherForm;
    comparison.form_a = form_of(*in_a);
    comparison.form_b = form_of(*in_b);
    return comparison;
  }
  std::vector<std::byte> from_a;
  std::vector<std::byte> from_b;
  const Status read = for_each_block(either, [&](const Rectangle& block) -> Status {
    const auto bytes = static_cast<size_t>(*checked_volume(block.shape) * size_of(either.dtype));
    from_a.resize(bytes);
    from_b.resize(bytes);
    TRAINYARD_TRY(a.read(either.name, either.kind, block, from_a));
    TRAINYARD_TRY(b.read(either.name, either.kind, block, from_b));
    compare_block(either.dtype, from_a, from_b, comparison);
    return {};
  });
  if (!read) return read.error();
  return comparison;
}

}  // namespace

bool Comparison::equal() const {
  return std::all_of(tensors.begin(), tensors.end(),
                     [](const TensorComparison& t) { return t.outcome == Outcome::kEqual; }) &&
         std::all_of(scalars.begin(), scalars.end(),
                     [](const ScalarComparison& s) { return s.equal(); });
}

Result<Comparison> compare(CheckpointReader& a, CheckpointReader& b) {
  Comparison comparison;
  comparison.scalars = compare_scalars(a.manifest(), b.manifest());
  comparison.same_config = a.manifest().config_json == b.manifest().config_json;
  std::set<std::pair<std::string, TensorKind>> names;
  for (const CheckpointReader* reader : {&a, &b}) {
    for (const TensorRecord& tensor : reader->manifest().tensors)
      names.emplace(tensor.name, tensor.kind);
  }
  for (const auto& [name, kind] : names) {
    TRAINYARD_ASSIGN(TensorComparison tensor,
                     compare_tensor(a, b, find_tensor(a.manifest(), name, kind),
                                    find_tensor(b.manifest(), name, kind)));
    comparison.tensors.push_back(std::move(tensor));
  }
  return comparison;
}

}  // namespace trainyard::checkpoint

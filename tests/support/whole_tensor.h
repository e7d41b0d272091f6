#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "worker/hf/model_folder.h"

namespace trainyard::testing_support {

/// A parameter of an opened folder.
inline Result<std::vector<float>> whole_tensor(const hf::HfModel& model,
                                               const engine::ParamSpec& param) {
  const std::vector<int64_t>& shape = param.tensor.shape;
  std::vector<float> values(static_cast<size_t>(param.elements()));
  TRAINYARD_TRY(model.read(param, {std::vector<int64_t>(shape.size(), 0), shape}, values));
  return values;
}

/// An opened folder's tensors for an export, in pieces that end anywhere.
inline hf::ReadTensor tensors_in_pieces(const hf::HfModel& model, size_t piece_elements) {
  return
      [&model, piece_elements](const engine::ParamSpec& param, const hf::UsePiece& use) -> Status {
        TRAINYARD_ASSIGN(const std::vector<float> values, whole_tensor(model, param));
        for (std::span<const float> rest = values; !rest.empty();) {
          const auto piece = rest.first(std::min(piece_elements, rest.size()));
          TRAINYARD_TRY(use(piece));
          rest = rest.subspan(piece.size());
        }
        return {};
      };
}

}  // namespace trainyard::testing_support

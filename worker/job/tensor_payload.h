#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "common/api/engine_spec.h"
#include "worker/model/model.h"

namespace trainyard::engine {

/// One exchange of tensor or context ranks in a micro-batch of a training step: what an op hands
/// over.
struct TensorPayload {
  TensorMeeting::Kind kind = TensorMeeting::Kind::kNone;  ///< kNone: what an op gathers of slices
  int64_t columns = 0;           ///< of each row, those that an op of kParts has of a rank
  DType type = DType::kFloat32;  ///< of what sums are rounded to, and of what is gathered
  DType sums = DType::kInt64;    ///< of what is added up
  /// Of slices of sequences: sequence by sequence.
  bool sliced = false;
  /// Of a ring: blocks are given back as exact sums.
  bool returns = false;

  /// Context ranks exchange it, not tensor ranks.
  bool is_of_context() const {
    return kind == TensorMeeting::Kind::kToHeads || kind == TensorMeeting::Kind::kToPositions ||
           kind == TensorMeeting::Kind::kBlocks;
  }
};

/// Those of a layer of a parallelized model, passes that run again included.
std::vector<TensorPayload> tensor_payloads(const Layer& layer,
                                           const kernels::DeviceFormats& formats,
                                           api::Recompute recompute);

/// Told of a collective and what it costs the rank: payload bytes.
using TensorSent = std::function<void(std::string_view operation, int64_t bytes)>;
/// What an exchange over `sequences` of `length` rows, of context ranks all rows, makes member
/// `rank` of `ranks` send. `ring`: members in the order of the group's ring, as in
/// comm::all_gather_bytes_sent().
void sent_by(const TensorPayload& payload, int64_t sequences, int64_t length, int ranks, int rank,
             std::span<const int> ring, const TensorSent& sent);

}  // namespace trainyard::engine

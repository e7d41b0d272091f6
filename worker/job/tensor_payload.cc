#include "worker/job/tensor_payload.h"

#include "worker/comm/formulas.h"
#include "worker/model/recompute.h"

namespace trainyard::engine {

using Kind = TensorMeeting::Kind;

std::vector<TensorPayload> tensor_payloads(const Layer& layer,
                                           const kernels::DeviceFormats& formats,
                                           api::Recompute recompute) {
  std::vector<TensorPayload> all;
  const auto add = [&](const Node& node, OpPass pass) {
    if (const SliceGather gather = node.op->gathers(pass); gather != SliceGather::kNone) {
      const bool input = gather == SliceGather::kInput;
      const int port = input ? node.inputs.front() : node.outputs.front();
      const Value& value = layer.values[static_cast<size_t>(port)];
      all.push_back({.columns = value.columns,
                     .type = type_of(input ? value.type : value.gradient_type, formats),
                     .sliced = true});
    }
    const TensorMeeting meeting = node.op->meeting(pass);
    if (meeting.kind == Kind::kNone) return;
    if (meeting.kind == Kind::kParts || meeting.kind == Kind::kGradients) {
      all.push_back({.kind = meeting.kind, .columns = meeting.columns, .sums = formats.sums});
      return;
    }
    const bool forward = pass == OpPass::kForward;
    if (meeting.kind == Kind::kKeySums) {
      all.push_back({.kind = meeting.kind, .columns = meeting.columns, .type = DType::kInt64});
      return;
    }
    if (meeting.kind == Kind::kToHeads || meeting.kind == Kind::kToPositions ||
        meeting.kind == Kind::kKeys) {
      const Value& value = layer.values[static_cast<size_t>(node.outputs.front())];
      all.push_back({.kind = meeting.kind,
                     .columns = meeting.columns,
                     .type = type_of(forward ? value.type : value.gradient_type, formats)});
      return;
    }
    if (meeting.kind == Kind::kBlocks) {
      const Value& value = layer.values[static_cast<size_t>(node.inputs.front())];
      all.push_back({.kind = meeting.kind,
                     .columns = meeting.columns,
                     .type = type_of(value.type, formats),
                     .returns = !forward});
      return;
    }
    const int port = forward ? node.outputs.front() : node.inputs.front();
    const Value& value = layer.values[static_cast<size_t>(port)];
    all.push_back({.kind = meeting.kind,
                   .columns = value.columns,
                   .type = type_of(forward ? value.type : value.gradient_type, formats),
                   .sums = formats.sums,
                   .sliced = value.rows == RowSpace::kSlice});
  };
  for (const Node& node : layer.nodes) {
    add(node, OpPass::kForward);
    add(node, OpPass::kBackwardInput);
    add(node, OpPass::kBackwardWeight);
  }
  for (const int again : recomputed_nodes(layer, recompute))
    add(layer.nodes[static_cast<size_t>(again)], OpPass::kForward);
  return all;
}

namespace {

/// Of each block, what its owner hands to the ranks that see it, and what these give back to it.
void sent_in_ring(const TensorPayload& payload, int64_t rows, int ranks, int rank,
                  const TensorSent& sent) {
  const RingBlocks ring{ranks};
  const int64_t elements = rows / ring.count() * payload.columns;
  for (int64_t block = 0; block < ring.count(); ++block) {
    const int owner = ring.owner(block);
    for (int other = 0; other < ranks; ++other) {
      if (other == owner || !ring.sees(other, block)) continue;
      if (rank == owner) sent("point_to_point", elements * size_of(payload.type));
      if (rank == other && payload.returns)
        sent("point_to_point", elements * size_of(DType::kInt64));
    }
  }
}

}  // namespace

void sent_by(const TensorPayload& payload, int64_t sequences, int64_t length, int ranks, int rank,
             std::span<const int> ring, const TensorSent& sent) {
  const int64_t rows = sequences * length;
  std::vector<int64_t> counts(static_cast<size_t>(ranks), rows * payload.columns);
  const auto share = [&](int64_t shared_rows) {
    counts = comm::even_counts(shared_rows, ranks);
    for (int64_t& count : counts)
      count *= payload.columns;
  };
  if (payload.kind == Kind::kBlocks) return sent_in_ring(payload, rows, ranks, rank, sent);
  if (payload.is_of_context()) {
    share(length);
    const bool to_heads = payload.kind == Kind::kToHeads;
    const std::vector<int64_t> of_heads(counts.size(), counts[static_cast<size_t>(rank)]);
    for (int64_t i = 0; i < sequences; ++i) {
      sent("all_to_all",
           comm::all_to_all_bytes_sent(rank, to_heads ? of_heads : counts, payload.type));
    }
    return;
  }
  if (payload.sliced) {
    share(length);
    for (int64_t i = 0; i < sequences; ++i) {
      if (payload.kind == Kind::kNone) {
        sent("all_gather", comm::all_gather_bytes_sent(rank, counts, payload.type, ring));
      } else {
        const DType type = payload.kind == Kind::kBits ? payload.type : payload.sums;
        sent("reduce_scatter", comm::reduce_scatter_bytes_sent(rank, counts, type));
      }
    }
    return;
  }
  if (payload.kind == Kind::kGradients && payload.sums == DType::kFloat32) {
    counts = comm::even_counts(payload.columns, ranks);
    sent("reduce_scatter", comm::reduce_scatter_bytes_sent(rank, counts, payload.sums));
    sent("all_gather", comm::all_gather_bytes_sent(rank, counts, payload.sums, ring));
    return;
  }
  if (payload.kind == Kind::kGradients) {
    sent("all_reduce",
         comm::all_reduce_bytes_sent(ranks, rank, payload.columns, DType::kInt64, ring));
    return;
  }
  if (payload.kind == Kind::kBits) {
    const int64_t bytes = rows * payload.columns * size_of(payload.type);
    sent("all_reduce", comm::all_reduce_bytes_sent(ranks, rank, bytes / size_of(DType::kInt32),
                                                   DType::kInt32, ring));
    return;
  }
  if (payload.kind == Kind::kKeySums) {
    sent("all_reduce",
         comm::all_reduce_bytes_sent(ranks, rank, rows * payload.columns, DType::kInt64, ring));
    return;
  }
  if (payload.kind == Kind::kSums) {
    share(rows);
    sent("reduce_scatter", comm::reduce_scatter_bytes_sent(rank, counts, payload.sums));
  }
  sent("all_gather", comm::all_gather_bytes_sent(rank, counts, payload.type, ring));
}

}  // namespace trainyard::engine

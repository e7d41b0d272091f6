#include "worker/model/ops/head_exchange.h"

#include <algorithm>
#include <numeric>

#include "common/base/check.h"
#include "kernels/head_parts.h"

namespace trainyard::engine {
namespace {

/// In the memory of the host.
void copy_on_host(const kernels::HeadParts& p) {
  const int64_t columns = std::accumulate(p.segments.begin(), p.segments.end(), int64_t{0});
  const int64_t part_bytes = columns / p.ranks * p.element_bytes;  // of a row
  auto* whole = static_cast<std::byte*>(p.whole);
  auto* of_first = static_cast<std::byte*>(p.parts);
  for (int64_t row = 0; row < p.rows; ++row) {
    for (const int64_t segment : p.segments) {
      const int64_t bytes = segment / p.ranks * p.element_bytes;
      for (int64_t rank = 0; rank < p.ranks; ++rank) {
        std::byte* const part = of_first + rank * p.rows * part_bytes;
        if (p.packs) {
          std::copy_n(whole, bytes, part);
        } else {
          std::copy_n(part, bytes, whole);
        }
        whole += bytes;
      }
      of_first += bytes;
    }
  }
}

}  // namespace

int64_t HeadExchange::columns() const {
  return std::accumulate(shape_.segments.begin(), shape_.segments.end(), int64_t{0});
}

/// The extent is that of this rank's positions.
int64_t HeadExchange::scratch_bytes(const OpExtent& extent, OpPass pass) const {
  if (pass == OpPass::kBackwardWeight) return 0;
  const DType type =
      pass == OpPass::kForward ? extent.formats.compute : extent.formats.*shape_.gradient;
  return extent.rows * columns() * size_of(type);
}

TensorMeeting HeadExchange::meeting(OpPass pass) const {
  if (pass == OpPass::kBackwardWeight) return {};
  using Kind = TensorMeeting::Kind;
  return {.kind = ends_in_heads(pass) ? Kind::kToHeads : Kind::kToPositions,
          .columns = columns() / shape_.ranks};
}

void HeadExchange::pack(const OpArgs& args, OpPass pass) const {
  if (!ends_in_heads(pass)) return;
  move(args, pass == OpPass::kForward ? args.in[0] : args.d_out[0], true);
}

void HeadExchange::finish(const OpArgs& args, OpPass pass, const MeetingRows&) const {
  if (ends_in_heads(pass)) return;
  move(args, pass == OpPass::kForward ? args.out[0] : args.d_in[0], false);
}

/// Between rows of this rank's positions and scratch, sequence by sequence.
void HeadExchange::move(const OpArgs& args, const TensorView& rows, bool packs) const {
  TRAINYARD_CHECK(rows.columns == columns());
  auto* const on_device = dynamic_cast<kernels::HeadPartCopies*>(args.kernels);
  const int64_t row_bytes = rows.columns * size_of(rows.type);
  for (const kernels::Sequence& sequence : args.batch->rows.sequences) {
    const int64_t begin = sequence.begin * row_bytes;
    const kernels::HeadParts parts{.rows = sequence.length,
                                   .segments = shape_.segments,
                                   .ranks = shape_.ranks,
                                   .element_bytes = size_of(rows.type),
                                   .whole = static_cast<std::byte*>(rows.data) + begin,
                                   .parts = args.scratch + begin,
                                   .packs = packs};
    if (on_device != nullptr) {
      on_device->copy(parts);
    } else {
      copy_on_host(parts);
    }
  }
}

}  // namespace trainyard::engine

#include "worker/state/gather.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <numeric>
#include <utility>
#include <vector>

namespace trainyard::engine {
namespace {

/// Of a piece, and of the message that brings a part of it: 8 MiB each.
constexpr int64_t kPieceElements = int64_t{2} << 20;

/// Rank 0 hashes the states of the largest models, or writes them to slow storage, within this. A
/// send has it until its first bytes are on the way; then the communicator's deadline holds.
const comm::PointToPointOptions kPatiently{.patience = std::chrono::hours(1)};

/// Elements that follow one another in a piece and in what their owner has.
struct Run {
  int64_t in_piece = 0;
  int64_t in_own = 0;
  int64_t count = 0;
};

/// What an owner has of rows [rows.begin, rows.end) of a tensor whose rows have `row` elements.
std::vector<Run> runs_in(const layout::Owner& owner, const layout::Range& rows, int64_t row) {
  std::vector<Run> runs;
  int64_t before = 0;
  for (const layout::Rectangle& slice : owner.slices) {
    const int64_t width = slice.elements() / slice.shape[0];
    const int64_t column = slice.offset.size() > 1 ? slice.offset[1] : 0;
    const int64_t first = std::max(slice.offset[0], rows.begin);
    const int64_t last = std::min(slice.offset[0] + slice.shape[0], rows.end);
    for (int64_t r = first; r < last; ++r) {
      const Run run{.in_piece = (r - rows.begin) * row + column,
                    .in_own = before + (r - slice.offset[0]) * width,
                    .count = width};
      const bool follows = !runs.empty() &&
                           runs.back().in_piece + runs.back().count == run.in_piece &&
                           runs.back().in_own + runs.back().count == run.in_own;
      if (follows) {
        runs.back().count += width;
      } else {
        runs.push_back(run);
      }
    }
    before += slice.elements();
  }
  return runs;
}

int64_t elements_of(const std::vector<Run>& runs) {
  int64_t count = 0;
  for (const Run& run : runs)
    count += run.count;
  return count;
}

/// An owner's part of a piece, from its memory to the host's.
Status pack(Device& device, const std::vector<Run>& runs, std::span<const float> own, float* out) {
  std::vector<CopyRange> ranges;
  for (const Run& run : runs) {
    const std::span<const float> from =
        own.subspan(static_cast<size_t>(run.in_own), static_cast<size_t>(run.count));
    ranges.push_back(
        {reinterpret_cast<std::byte*>(out), std::as_bytes(from).data(), from.size_bytes()});
    out += run.count;
  }
  device.copy(ranges);
  return device.wait();
}

}  // namespace

Status gather_pieces(comm::Communicator& world, const layout::Layout& layout, int param,
                     Device& device, std::span<const float> own, std::vector<float>& buffer,
                     const UsePiece& use) {
  const std::vector<int64_t>& shape = layout.tensor(param).shape;
  const std::vector<layout::Owner> owners = layout.owners(param);
  const bool collects = world.rank() == 0;
  const bool sends = std::any_of(owners.begin(), owners.end(), [&](const layout::Owner& owner) {
    return owner.rank == world.rank();
  });
  if (!collects && !sends) return {};
  const int64_t row =
      std::accumulate(shape.begin() + 1, shape.end(), int64_t{1}, std::multiplies<>());
  const int64_t rows_max = std::max<int64_t>(1, kPieceElements / row);
  for (int64_t begin = 0; begin < shape[0]; begin += rows_max) {
    const layout::Range rows{begin, std::min(begin + rows_max, shape[0])};
    const int64_t size = rows.size() * row;
    buffer.resize(static_cast<size_t>(2 * size));
    float* const message = buffer.data() + size;
    for (const layout::Owner& owner : owners) {
      const bool is_own = owner.rank == world.rank();
      if (!collects && !is_own) continue;
      const std::vector<Run> runs = runs_in(owner, rows, row);
      if (runs.empty()) continue;
      // What is whole in the piece needs no copy.
      const bool whole = collects && runs.size() == 1;
      float* const part = whole ? buffer.data() + runs.front().in_piece : message;
      const auto bytes =
          std::as_writable_bytes(std::span(part, static_cast<size_t>(elements_of(runs))));
      if (is_own) {
        TRAINYARD_TRY(pack(device, runs, own, part));
      } else {
        TRAINYARD_TRY(world.receive(bytes, owner.rank)->wait());
      }
      if (!collects) {
        TRAINYARD_TRY(world.send(bytes, 0, kPatiently)->wait());
        continue;
      }
      const float* next = part;
      for (const Run& run : runs) {
        if (!whole) std::copy_n(next, run.count, buffer.data() + run.in_piece);
        next += run.count;
      }
    }
    if (collects) use(std::span(buffer).first(static_cast<size_t>(size)));
  }
  return {};
}

Status tell(comm::Communicator& world, std::span<const int> ranks, std::span<std::byte> message) {
  std::vector<comm::PointToPoint> sends;
  for (const int rank : ranks) {
    if (rank != 0) sends.push_back({comm::PointToPoint::Kind::kSend, rank, message});
  }
  return sends.empty() ? Status() : world.batch_point_to_point(std::move(sends))->wait();
}

Status tell_all(comm::Communicator& world, std::span<std::byte> message) {
  std::vector<int> ranks(static_cast<size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return tell(world, ranks, message);
}

Status hear(comm::Communicator& world, std::span<std::byte> message) {
  return world.receive(message, 0, kPatiently)->wait();
}

}  // namespace trainyard::engine

#include "worker/state/gather.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <utility>

namespace trainyard::engine {
namespace {

constexpr int64_t kPieceElements = int64_t{4} << 20;  // 16 MiB

/// Rank 0 hashes the states of the largest models, or writes them to slow storage, within this. A
/// send has it until its first bytes are on the way; then the communicator's deadline holds.
const comm::PointToPointOptions kPatiently{.patience = std::chrono::hours(1)};

}  // namespace

Status gather_pieces(comm::Communicator& world, const layout::Layout& layout, int param,
                     Device& device, std::span<const float> own, std::vector<float>& buffer,
                     const UsePiece& use) {
  for (const auto& [owner, range] : layout.owners(param)) {
    if (world.rank() != 0 && world.rank() != owner) continue;
    const int64_t count = range.size();
    for (int64_t begin = 0; begin < count; begin += kPieceElements) {
      const auto size = static_cast<size_t>(std::min(kPieceElements, count - begin));
      buffer.resize(size);
      const std::span<std::byte> bytes = std::as_writable_bytes(std::span(buffer));
      if (world.rank() == owner) {
        device.copy({bytes.data(), std::as_bytes(own.subspan(static_cast<size_t>(begin))).data(),
                     bytes.size()});
        TRAINYARD_TRY(device.wait());
      } else {
        TRAINYARD_TRY(world.receive(bytes, owner)->wait());
      }
      if (world.rank() == 0) {
        use(buffer);
      } else {
        TRAINYARD_TRY(world.send(bytes, 0, kPatiently)->wait());
      }
    }
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

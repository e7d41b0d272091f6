#include "worker/comm/communicator.h"

namespace trainyard::comm {

WorkPtr Communicator::send(std::span<const std::byte> data, int peer,
                           const PointToPointOptions& options) {
  // A transfer of kSend only reads.
  const std::span<std::byte> bytes(const_cast<std::byte*>(data.data()), data.size());
  return batch_point_to_point({{PointToPoint::Kind::kSend, peer, bytes}}, options);
}

WorkPtr Communicator::receive(std::span<std::byte> data, int peer,
                              const PointToPointOptions& options) {
  return batch_point_to_point({{PointToPoint::Kind::kReceive, peer, data}}, options);
}

WorkPtr Communicator::all_to_all(std::span<const std::byte> send, std::span<std::byte> receive,
                                 DType dtype) {
  const std::vector<int64_t> counts(static_cast<size_t>(size()),
                                    static_cast<int64_t>(send.size()) / size_of(dtype) / size());
  return all_to_all(send, counts, receive, counts, dtype);
}

}  // namespace trainyard::comm

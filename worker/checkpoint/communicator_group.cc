#include "worker/checkpoint/communicator_group.h"

#include <cstdint>
#include <span>

namespace trainyard::checkpoint {
namespace {

std::span<std::byte> bytes_of(std::string& text) {
  return std::as_writable_bytes(std::span(text.data(), text.size()));
}

}  // namespace

Result<std::vector<std::string>> CommunicatorCommitGroup::gather(std::string own_record) {
  const auto size = static_cast<size_t>(comm_.size());
  const auto own = static_cast<size_t>(comm_.rank());
  std::vector<int64_t> lengths(size);
  lengths[own] = static_cast<int64_t>(own_record.size());
  const std::vector<int64_t> one_each(size, 1);
  TRAINYARD_TRY(
      comm_.all_gather(std::as_writable_bytes(std::span(lengths)), one_each, DType::kInt64)
          ->wait());
  std::vector<std::string> records;
  std::vector<comm::PointToPoint> transfers;
  if (own == 0) {
    records.resize(size);
    for (size_t rank = 1; rank < size; ++rank) {
      records[rank].resize(static_cast<size_t>(lengths[rank]));
      transfers.push_back(
          {comm::PointToPoint::Kind::kReceive, static_cast<int>(rank), bytes_of(records[rank])});
    }
  } else {
    transfers.push_back({comm::PointToPoint::Kind::kSend, 0, bytes_of(own_record)});
  }
  if (size > 1) TRAINYARD_TRY(comm_.batch_point_to_point(std::move(transfers))->wait());
  if (own == 0) records[0] = std::move(own_record);
  return records;
}

Result<std::string> CommunicatorCommitGroup::broadcast(std::string from_rank_0) {
  int64_t length = static_cast<int64_t>(from_rank_0.size());
  TRAINYARD_TRY(comm_.broadcast(std::as_writable_bytes(std::span(&length, 1)), 0)->wait());
  from_rank_0.resize(static_cast<size_t>(length));
  if (length > 0) TRAINYARD_TRY(comm_.broadcast(bytes_of(from_rank_0), 0)->wait());
  return from_rank_0;
}

Result<bool> CommunicatorCommitGroup::any(bool failed) {
  uint8_t flag = failed ? 1 : 0;
  TRAINYARD_TRY(comm_
                    .all_reduce(std::as_writable_bytes(std::span(&flag, 1)), DType::kUint8,
                                comm::ReduceOp::kLor)
                    ->wait());
  return flag != 0;
}

}  // namespace trainyard::checkpoint

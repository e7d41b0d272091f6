#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "worker/comm/communicator.h"
#include "worker/device/device.h"

namespace trainyard::comm {

/// Bytes of each of the two buffers in pinned host memory that a group's data pass through.
inline constexpr int64_t kStagedPieceBytes = int64_t{4} << 20;
/// Pinned host memory of a group of so many ranks.
constexpr int64_t staged_bytes(int ranks) { return ranks > 1 ? 2 * kStagedPieceBytes : 0; }

/// Receives the places of operations that a rank's device has not reached yet. The thread that
/// enqueued them may be ahead of it. Other ranks are not to blame for such an operation.
class DeviceWaits {
 public:
  virtual ~DeviceWaits() = default;
  /// The place in logical time that the rank's thread has come to. Called on that thread.
  virtual int64_t place() const = 0;
  /// An operation of that place begins (true) or ends (false) to wait for the device. Thread-safe.
  virtual void waits_for_device(int64_t place, bool waits) = 0;
};

/// Operations in the memory of a device by those of a group in the memory of the host: data pass
/// through pinned host memory in pieces, of which one is copied while another is on its way. What
/// is enqueued on the device before a call comes before the operation; when its Work has been
/// waited for, what is enqueued next sees what it has left. Sums have the bits of the host group's,
/// which do not depend on how they are cut.
///
/// One thread of its own, which alone uses the host group. Work::cancel() has no effect.
class StagedCommunicator final : public StepCommunicator {
 public:
  /// `host`, `device` and `waits` (may be null) are not owned; the device is one whose memory host
  /// code cannot reach. Errors: those of the device's memory and copy stream.
  static Result<std::unique_ptr<StepCommunicator>> make(Communicator& host, engine::Device& device,
                                                        DeviceWaits* waits = nullptr);
  ~StagedCommunicator() override;

  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }
  WorkPtr all_reduce(std::span<std::byte> data, DType dtype, ReduceOp op) override;
  WorkPtr reduce_scatter(std::span<std::byte> data, std::span<const int64_t> counts, DType dtype,
                         ReduceOp op) override;
  WorkPtr all_gather(std::span<std::byte> data, std::span<const int64_t> counts,
                     DType dtype) override;
  WorkPtr all_to_all(std::span<const std::byte> send, std::span<std::byte> receive,
                     DType dtype) override;
  WorkPtr send(std::span<const std::byte> data, int peer,
               const PointToPointOptions& options) override;
  WorkPtr receive(std::span<std::byte> data, int peer, const PointToPointOptions& options) override;
  void abort(const Error& reason, std::span<const int> lost_ranks) override;
  void observe(trace::SpanSink* sink, trace::Track track) override { host_.observe(sink, track); }
  Counters counters() const override { return host_.counters(); }
  std::vector<int> lost_ranks() const override { return host_.lost_ranks(); }

 private:
  class Done;
  struct Part;
  struct Job;
  struct Piece;

  StagedCommunicator(Communicator& host, std::unique_ptr<engine::CopyStream> copies,
                     std::unique_ptr<engine::MemoryBlock> memory, DeviceWaits* waits);
  static std::vector<Part> parts_of(std::span<std::byte> data, std::span<const int64_t> counts,
                                    DType dtype);
  WorkPtr enqueue(Job job);
  void work(const std::stop_token& stop);
  Status run(const Job& job);
  Piece piece_of(const Job& job, int64_t index, int64_t pieces) const;
  Status copy(const Piece& piece, std::byte* memory, bool from_device);

  Communicator& host_;
  std::unique_ptr<engine::CopyStream> copies_;
  std::unique_ptr<engine::MemoryBlock> memory_;
  DeviceWaits* waits_;
  std::stop_source aborted_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<Job> jobs_;
  std::jthread thread_;  // last: it uses all of the above
};

}  // namespace trainyard::comm

#include "worker/comm/staged_communicator.h"

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <optional>
#include <utility>

#include "worker/comm/equal_parts.h"

namespace trainyard::comm {

/// What became of an operation.
class StagedCommunicator::Done final : public Work {
 public:
  Done() = default;
  explicit Done(Status status) : status_(std::move(status)) {}
  bool done() const override {
    const std::lock_guard lock(mutex_);
    return status_.has_value();
  }
  Status wait() override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return status_.has_value(); });
    return *status_;
  }
  void cancel() override {}
  void set(Status status) {
    const std::lock_guard lock(mutex_);
    status_ = std::move(status);
    changed_.notify_all();
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Status> status_;
};

/// Elements in the memory of the device that follow each other.
struct StagedCommunicator::Part {
  std::byte* data = nullptr;
  int64_t count = 0;
};

/// An operation on parts.
struct StagedCommunicator::Job {
  std::vector<Part> parts;
  int64_t element_bytes = 1;
  std::function<bool(size_t part)> goes_in;    // to the host
  std::function<bool(size_t part)> comes_out;  // back from it
  /// Begins the operation on what `data` has of each part, laid end to end.
  std::function<WorkPtr(std::span<std::byte> data, std::span<const int64_t> counts)> start;
  engine::CopyRange stays = {};  // copied within the device
  std::unique_ptr<engine::CopyStream::Moment> moment = nullptr;
  int64_t place = 0;  ///< see DeviceWaits
  std::shared_ptr<Done> done = nullptr;

  int64_t bytes() const {
    int64_t sum = 0;
    for (const Part& part : parts)
      sum += part.count * element_bytes;
    return sum;
  }
};

/// As much of each part as one buffer takes of all.
struct StagedCommunicator::Piece {
  const Job* job;
  std::vector<std::byte*> places;  // in the parts
  std::vector<int64_t> counts;
  int64_t bytes = 0;
  bool is_first = false;
};

/// Laid end to end.
std::vector<StagedCommunicator::Part> StagedCommunicator::parts_of(std::span<std::byte> data,
                                                                   std::span<const int64_t> counts,
                                                                   DType dtype) {
  std::vector<Part> parts;
  parts.reserve(counts.size());
  std::byte* at = data.data();
  for (const int64_t count : counts) {
    parts.push_back({at, count});
    at += count * size_of(dtype);
  }
  return parts;
}

Result<std::unique_ptr<StepCommunicator>> StagedCommunicator::make(Communicator& host,
                                                                   engine::Device& device,
                                                                   DeviceWaits* waits) {
  TRAINYARD_ASSIGN(auto copies, device.copy_stream());
  TRAINYARD_ASSIGN(auto memory, device.host_memory().allocate(staged_bytes(host.size())));
  return std::unique_ptr<StepCommunicator>(
      new StagedCommunicator(host, std::move(copies), std::move(memory), waits));
}

StagedCommunicator::StagedCommunicator(Communicator& host,
                                       std::unique_ptr<engine::CopyStream> copies,
                                       std::unique_ptr<engine::MemoryBlock> memory,
                                       DeviceWaits* waits)
    : host_(host),
      copies_(std::move(copies)),
      memory_(std::move(memory)),
      waits_(waits),
      thread_([this](const std::stop_token& stop) { work(stop); }) {}

/// What has not begun never will.
StagedCommunicator::~StagedCommunicator() {
  thread_.request_stop();
  thread_.join();
  for (Job& job : jobs_)
    job.done->set(Error{ErrorCode::kAborted, "the group is gone"});
}

WorkPtr StagedCommunicator::all_reduce(std::span<std::byte> data, DType dtype, ReduceOp op) {
  const auto all = [](size_t) { return true; };
  return enqueue({.parts = {{data.data(), static_cast<int64_t>(data.size()) / size_of(dtype)}},
                  .element_bytes = size_of(dtype),
                  .goes_in = all,
                  .comes_out = all,
                  .start = [this, dtype, op](std::span<std::byte> piece, const auto&) {
                    return host_.all_reduce(piece, dtype, op);
                  }});
}

WorkPtr StagedCommunicator::reduce_scatter(std::span<std::byte> data,
                                           std::span<const int64_t> counts, DType dtype,
                                           ReduceOp op) {
  const auto self = static_cast<size_t>(rank());
  return enqueue(
      {.parts = parts_of(data, counts, dtype),
       .element_bytes = size_of(dtype),
       .goes_in = [](size_t) { return true; },
       .comes_out = [self](size_t part) { return part == self; },
       .start =
           [this, dtype, op](std::span<std::byte> piece, std::span<const int64_t> of_piece) {
             return host_.reduce_scatter(piece, of_piece, dtype, op);
           }});
}

WorkPtr StagedCommunicator::all_gather(std::span<std::byte> data, std::span<const int64_t> counts,
                                       DType dtype) {
  const auto self = static_cast<size_t>(rank());
  return enqueue({.parts = parts_of(data, counts, dtype),
                  .element_bytes = size_of(dtype),
                  .goes_in = [self](size_t part) { return part == self; },
                  .comes_out = [self](size_t part) { return part != self; },
                  .start =
                      [this, dtype](std::span<std::byte> piece, std::span<const int64_t> of_piece) {
                        return host_.all_gather(piece, of_piece, dtype);
                      }});
}

/// What this rank has for itself does not leave the device. Ranks cut parts alike, as all parts are
/// equal.
WorkPtr StagedCommunicator::all_to_all(std::span<const std::byte> send,
                                       std::span<std::byte> receive, DType dtype) {
  const auto ranks = static_cast<size_t>(size());
  const auto self = static_cast<size_t>(rank());
  const Status equal = check_equal_parts(send.size(), receive.size(), ranks, dtype);
  if (!equal) {
    abort(equal.error(), {});
    return std::make_shared<Done>(equal);
  }
  const size_t bytes = send.size() / ranks;
  std::vector<int64_t> counts(ranks, static_cast<int64_t>(bytes) / size_of(dtype));
  counts[self] = 0;
  // It is only read.
  auto* const sent = const_cast<std::byte*>(send.data());
  std::vector<Part> parts;
  parts.reserve(2 * ranks);
  for (std::byte* const data : {sent, receive.data()}) {
    for (size_t peer = 0; peer < ranks; ++peer)
      parts.push_back({data + peer * bytes, counts[peer]});
  }
  return enqueue(
      {.parts = std::move(parts),
       .element_bytes = size_of(dtype),
       .goes_in = [ranks](size_t part) { return part < ranks; },
       .comes_out = [ranks](size_t part) { return part >= ranks; },
       .start =
           [this, ranks, dtype](std::span<std::byte> piece, std::span<const int64_t> of_piece) {
             const size_t half = piece.size() / 2;
             return host_.all_to_all(piece.first(half), of_piece.first(ranks), piece.subspan(half),
                                     of_piece.subspan(ranks), dtype);
           },
       .stays = {receive.data() + self * bytes, sent + self * bytes, bytes}});
}

WorkPtr StagedCommunicator::send(std::span<const std::byte> data, int peer,
                                 const PointToPointOptions& options) {
  // It is only read.
  return enqueue(
      {.parts = {{const_cast<std::byte*>(data.data()), static_cast<int64_t>(data.size())}},
       .goes_in = [](size_t) { return true; },
       .comes_out = [](size_t) { return false; },
       .start = [this, peer, options](std::span<std::byte> piece,
                                      const auto&) { return host_.send(piece, peer, options); }});
}

WorkPtr StagedCommunicator::receive(std::span<std::byte> data, int peer,
                                    const PointToPointOptions& options) {
  return enqueue({.parts = {{data.data(), static_cast<int64_t>(data.size())}},
                  .goes_in = [](size_t) { return false; },
                  .comes_out = [](size_t) { return true; },
                  .start = [this, peer, options](
                               std::span<std::byte> piece,
                               const auto&) { return host_.receive(piece, peer, options); }});
}

void StagedCommunicator::abort(const Error& reason, std::span<const int> lost_ranks) {
  host_.abort(reason, lost_ranks);
  aborted_.request_stop();
}

WorkPtr StagedCommunicator::enqueue(Job job) {
  auto done = std::make_shared<Done>();
  job.done = done;
  Result<std::unique_ptr<engine::CopyStream::Moment>> moment = copies_->now();
  if (!moment) {
    host_.abort(moment.error());
    done->set(moment.error());
    return done;
  }
  job.moment = *std::move(moment);
  if (waits_ != nullptr) job.place = waits_->place();
  const std::lock_guard lock(mutex_);
  jobs_.push_back(std::move(job));
  changed_.notify_all();
  return done;
}

void StagedCommunicator::work(const std::stop_token& stop) {
  while (true) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait(lock, stop, [this] { return !jobs_.empty(); })) return;
    if (stop.stop_requested()) return;
    const Job job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job.done->set(run(job));
  }
}

/// Piece i + 1 is copied in while piece i is with the host group, and the pieces come out in order.
Status StagedCommunicator::run(const Job& job) {
  const int64_t bytes = job.bytes();
  if (size() == 1 || bytes == 0) return {};
  const auto parts = std::ssize(job.parts);
  const int64_t room = kStagedPieceBytes - parts * job.element_bytes;  // each part is rounded up
  const int64_t pieces = (bytes + room - 1) / room;
  struct Buffer {
    std::byte* memory;
    Piece piece = {};
    WorkPtr work = nullptr;
  };
  std::byte* const memory = memory_->bytes().data();
  std::array<Buffer, 2> buffers = {Buffer{memory}, Buffer{memory + kStagedPieceBytes}};
  const auto finish = [&](Buffer& buffer) -> Status {
    if (!buffer.work) return {};
    TRAINYARD_TRY(std::exchange(buffer.work, nullptr)->wait());
    return copy(buffer.piece, buffer.memory, false);
  };
  const auto go = [&]() -> Status {
    TRAINYARD_TRY(copies_->after(*job.moment));
    for (int64_t index = 0; index < pieces; ++index) {
      Buffer& buffer = buffers[static_cast<size_t>(index % 2)];
      TRAINYARD_TRY(finish(buffer));
      buffer.piece = piece_of(job, index, pieces);
      buffer.piece.is_first = index == 0;
      TRAINYARD_TRY(copy(buffer.piece, buffer.memory, true));
      buffer.work =
          job.start({buffer.memory, static_cast<size_t>(buffer.piece.bytes)}, buffer.piece.counts);
    }
    TRAINYARD_TRY(finish(buffers[static_cast<size_t>(pieces % 2)]));
    return finish(buffers[static_cast<size_t>((pieces + 1) % 2)]);
  };
  Status status = go();
  if (status) return status;
  // A peer must not wait for what the device lacks, and the host group may still use the buffers.
  host_.abort(status.error());
  for (Buffer& buffer : buffers) {
    if (buffer.work) (void)buffer.work->wait();
  }
  return status;
}

StagedCommunicator::Piece StagedCommunicator::piece_of(const Job& job, int64_t index,
                                                       int64_t pieces) const {
  Piece piece{.job = &job, .places = {}, .counts = {}};
  for (const Part& part : job.parts) {
    const auto cut = [&](int64_t i) {
      return part.count / pieces * i + part.count % pieces * i / pieces;
    };
    piece.places.push_back(part.data + cut(index) * job.element_bytes);
    piece.counts.push_back(cut(index + 1) - cut(index));
    piece.bytes += piece.counts.back() * job.element_bytes;
  }
  return piece;
}

Status StagedCommunicator::copy(const Piece& piece, std::byte* memory, bool from_device) {
  const Job& job = *piece.job;
  const auto& moves = from_device ? job.goes_in : job.comes_out;
  std::vector<engine::CopyRange> ranges;
  ranges.reserve(piece.counts.size() + 1);
  for (size_t part = 0; part < piece.counts.size(); ++part) {
    const int64_t bytes = piece.counts[part] * job.element_bytes;
    std::byte* const there = piece.places[part];
    if (moves(part) && bytes > 0) {
      ranges.push_back(
          {from_device ? memory : there, from_device ? there : memory, static_cast<size_t>(bytes)});
    }
    memory += bytes;
  }
  if (from_device && piece.is_first && job.stays.bytes > 0) ranges.push_back(job.stays);
  if (ranges.empty()) return {};
  if (waits_ != nullptr) waits_->waits_for_device(job.place, true);
  Status copied = copies_->copy(ranges, aborted_.get_token());
  if (waits_ != nullptr) waits_->waits_for_device(job.place, false);
  return copied;
}

}  // namespace trainyard::comm

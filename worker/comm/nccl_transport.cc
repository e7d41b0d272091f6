#include "worker/comm/nccl_transport.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "worker/comm/equal_parts.h"
#include "worker/comm/formulas.h"
#include "worker/comm/host/group.h"
#include "worker/comm/nccl_core.h"

namespace trainyard::comm {
namespace {

using CorePtr = std::shared_ptr<NcclCore>;

/// Of a DType, where NCCL has it.
std::optional<int> type_of(DType dtype) {
  switch (dtype) {
    case DType::kInt8:
      return nccl::kInt8;
    case DType::kUint8:
      return nccl::kUint8;
    case DType::kInt32:
      return nccl::kInt32;
    case DType::kInt64:
      return nccl::kInt64;
    case DType::kFloat32:
      return nccl::kFloat32;
    case DType::kFloat64:
      return nccl::kFloat64;
    case DType::kBFloat16:
      return nccl::kBfloat16;
    default:
      return std::nullopt;
  }
}

/// Where the result does not depend on the order of the ranks.
std::optional<int> exact_op(ReduceOp op, DType dtype) {
  if (op == ReduceOp::kMax) return nccl::kMax;
  if (op == ReduceOp::kMin) return nccl::kMin;
  const bool is_integer = dtype == DType::kInt8 || dtype == DType::kUint8 ||
                          dtype == DType::kInt32 || dtype == DType::kInt64;
  if (op == ReduceOp::kSum && is_integer) return nccl::kSum;
  return std::nullopt;
}

class NcclWork final : public Work {
 public:
  NcclWork(CorePtr core, std::shared_ptr<NcclOperation> operation)
      : core_(std::move(core)), operation_(std::move(operation)) {}
  bool done() const override { return core_->is_done(*operation_); }
  Status wait() override {
    TRAINYARD_TRY(core_->wait(*operation_));
    return operation_->group->stream->device_after(*operation_->ended);
  }
  void cancel() override {}

 private:
  CorePtr core_;
  std::shared_ptr<NcclOperation> operation_;
};

/// One that has come to its end at the call.
class EndedWork final : public Work {
 public:
  explicit EndedWork(Status status) : status_(std::move(status)) {}
  bool done() const override { return true; }
  Status wait() override { return status_; }
  void cancel() override {}

 private:
  Status status_;
};

/// Parts of a buffer, laid end to end.
struct Parts {
  std::byte* data = nullptr;
  std::vector<int64_t> counts;
  int64_t element_bytes = 1;

  bool are_equal() const {
    return std::all_of(counts.begin(), counts.end(), [&](int64_t c) { return c == counts[0]; });
  }
  /// Calls `use` with each part that is not empty until that fails.
  template <class Use>
  bool all_of(const Use& use) const {
    std::byte* at = data;
    for (size_t part = 0; part < counts.size(); ++part) {
      const auto count = static_cast<size_t>(counts[part]);
      if (count > 0 && !use(static_cast<int>(part), at, count)) return false;
      at += counts[part] * element_bytes;
    }
    return true;
  }
  std::byte* begin_of(int part) const {
    return data +
           std::accumulate(counts.begin(), counts.begin() + part, int64_t{0}) * element_bytes;
  }
};

class NcclCommunicator final : public StepCommunicator {
 public:
  NcclCommunicator(CorePtr core, NcclGroup& group) : core_(std::move(core)), group_(group) {}
  ~NcclCommunicator() override { core_->forget(group_); }
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  int rank() const override { return group_.rank; }
  int size() const override { return group_.size; }

  WorkPtr all_reduce(std::span<std::byte> data, DType dtype, ReduceOp op) override {
    const std::optional<int> type = type_of(dtype);
    const std::optional<int> how = exact_op(op, dtype);
    if (!type || !how) return refuse(Operation::kAllReduce, dtype, op);
    const auto count = static_cast<int64_t>(data.size()) / size_of(dtype);
    const int64_t bytes = all_reduce_bytes_sent(size(), rank(), count, dtype);
    return enqueue(Operation::kAllReduce, data, bytes, bytes, [=, this] {
      return call("ncclAllReduce", [&] {
        return core_->api().all_reduce(data.data(), data.data(), static_cast<size_t>(count), *type,
                                       *how, group_.comm, group_.stream->handle());
      });
    });
  }

  /// NCCL knows equal parts only: others are summed up one by one, for their owners. Fp32 sums are
  /// those of gradients with Fast numerics, whose bits may depend on NCCL's order: one layout of
  /// one version has one.
  WorkPtr reduce_scatter(std::span<std::byte> data, std::span<const int64_t> counts, DType dtype,
                         ReduceOp op) override {
    const std::optional<int> type = type_of(dtype);
    const bool is_fast = dtype == DType::kFloat32 && op == ReduceOp::kSum;
    const std::optional<int> how = is_fast ? nccl::kSum : exact_op(op, dtype);
    if (!type || !how) return refuse(Operation::kReduceScatter, dtype, op);
    if (Status fits = check(data, counts, dtype); !fits) return fail(fits.error());
    const int64_t sent = reduce_scatter_bytes_sent(rank(), counts, dtype);
    return enqueue(Operation::kReduceScatter, data, sent, sent,
                   [this, type, how,
                    parts = Parts{data.data(), {counts.begin(), counts.end()}, size_of(dtype)}] {
                     const nccl::Api& api = core_->api();
                     if (parts.are_equal()) {
                       return call("ncclReduceScatter", [&] {
                         return api.reduce_scatter(parts.data, parts.begin_of(rank()),
                                                   static_cast<size_t>(parts.counts[0]), *type,
                                                   *how, group_.comm, group_.stream->handle());
                       });
                     }
                     return grouped([&] {
                       return parts.all_of([&](int root, std::byte* part, size_t count) {
                         return core_->call("ncclReduce", &group_, [&] {
                           return api.reduce(part, part, count, *type, *how, root, group_.comm,
                                             group_.stream->handle());
                         });
                       });
                     });
                   });
  }

  WorkPtr all_gather(std::span<std::byte> data, std::span<const int64_t> counts,
                     DType dtype) override {
    if (Status fits = check(data, counts, dtype); !fits) return fail(fits.error());
    const int64_t sent = all_gather_bytes_sent(rank(), counts, dtype);
    std::vector<int64_t> bytes(counts.begin(), counts.end());
    for (int64_t& count : bytes)
      count *= size_of(dtype);
    const int64_t received = static_cast<int64_t>(data.size()) - bytes[static_cast<size_t>(rank())];
    return enqueue(Operation::kAllGather, data, sent, received,
                   [this, parts = Parts{data.data(), std::move(bytes), 1}] {
                     const nccl::Api& api = core_->api();
                     if (parts.are_equal()) {
                       return call("ncclAllGather", [&] {
                         return api.all_gather(parts.begin_of(rank()), parts.data,
                                               static_cast<size_t>(parts.counts[0]), nccl::kUint8,
                                               group_.comm, group_.stream->handle());
                       });
                     }
                     return grouped([&] {
                       return parts.all_of([&](int root, std::byte* part, size_t count) {
                         return core_->call("ncclBroadcast", &group_, [&] {
                           return api.broadcast(part, part, count, nccl::kUint8, root, group_.comm,
                                                group_.stream->handle());
                         });
                       });
                     });
                   });
  }

  WorkPtr all_to_all(std::span<const std::byte> send, std::span<std::byte> receive,
                     DType dtype) override {
    const auto ranks = static_cast<size_t>(size());
    const Status equal = check_equal_parts(send.size(), receive.size(), ranks, dtype);
    if (!equal) return fail(equal.error().with_context("NCCL"));
    const size_t bytes = send.size() / ranks;
    const auto others = static_cast<int64_t>(send.size() - bytes);
    return enqueue(Operation::kAllToAll, send, others, others, [=, this] {
      return grouped([&] { return exchange(send.data(), receive.data(), bytes); });
    });
  }

  WorkPtr send(std::span<const std::byte> data, int peer, const PointToPointOptions&) override {
    return enqueue(Operation::kPointToPoint, data, static_cast<int64_t>(data.size()), 0, [=, this] {
      return call("ncclSend", [&] {
        return core_->api().send(data.data(), data.size(), nccl::kUint8, peer, group_.comm,
                                 group_.stream->handle());
      });
    });
  }

  WorkPtr receive(std::span<std::byte> data, int peer, const PointToPointOptions&) override {
    return enqueue(Operation::kPointToPoint, data, 0, static_cast<int64_t>(data.size()), [=, this] {
      return call("ncclRecv", [&] {
        return core_->api().receive(data.data(), data.size(), nccl::kUint8, peer, group_.comm,
                                    group_.stream->handle());
      });
    });
  }

  /// An operation of the kinds of `use` for NcclCore::enqueue_together(): in its first one the
  /// library connects the members of a group, each of whom waits for the others there.
  Result<std::shared_ptr<NcclOperation>> first_operation(GroupUse use, std::span<std::byte> data) {
    const std::span<std::byte> half = data.first(data.size() / 2);
    if (use == GroupUse::kMessages) {  // both ways
      return operation(Operation::kPointToPoint, data, 0, 0, [=, this] {
        return core_->call("ncclSend", &group_, [&] {
          return core_->api().send(half.data(), half.size(), nccl::kUint8, 1 - rank(), group_.comm,
                                   group_.stream->handle());
        }) && core_->call("ncclRecv", &group_, [&] {
          return core_->api().receive(half.data() + half.size(), half.size(), nccl::kUint8,
                                      1 - rank(), group_.comm, group_.stream->handle());
        });
      });
    }
    if (use == GroupUse::kExchanges) {
      return operation(Operation::kAllToAll, data, 0, 0, [=, this] {
        return exchange(half.data(), half.data() + half.size(),
                        half.size() / static_cast<size_t>(size()));
      });
    }
    return operation(Operation::kAllReduce, data, 0, 0, [=, this] {
      return core_->call("ncclAllReduce", &group_, [&] {
        return core_->api().all_reduce(data.data(), data.data(), data.size() / 8, nccl::kInt64,
                                       nccl::kSum, group_.comm, group_.stream->handle());
      });
    });
  }

  void abort(const Error& reason, std::span<const int> lost_ranks) override {
    core_->fail(reason, lost_ranks);
    const std::lock_guard lock(core_->mutex());
    if (group_.host != nullptr) group_.host->abort(reason, lost_ranks);
  }
  void observe(trace::SpanSink* sink, trace::Track track) override {
    const std::lock_guard lock(core_->mutex());
    group_.sink = sink;
    group_.track = track;
  }
  Counters counters() const override {
    const std::lock_guard lock(core_->mutex());
    return group_.counters;
  }
  std::vector<int> lost_ranks() const override {
    std::vector<int> lost = core_->lost_ranks();
    const std::lock_guard lock(core_->mutex());
    if (lost.empty() && group_.host != nullptr) lost = group_.host->lost_ranks();
    return lost;
  }

 private:
  /// Within a group of calls: `bytes` to and from each rank, this one as well.
  bool exchange(const std::byte* from, std::byte* to, size_t bytes) {
    const nccl::Api& api = core_->api();
    for (int peer = 0; peer < size(); ++peer) {
      const size_t at = static_cast<size_t>(peer) * bytes;
      const bool sends = core_->call("ncclSend", &group_, [&] {
        return api.send(from + at, bytes, nccl::kUint8, peer, group_.comm, group_.stream->handle());
      });
      const bool receives = sends && core_->call("ncclRecv", &group_, [&] {
        return api.receive(to + at, bytes, nccl::kUint8, peer, group_.comm,
                           group_.stream->handle());
      });
      if (!receives) return false;
    }
    return true;
  }
  template <class Function>
  bool call(const char* name, const Function& function) {
    return core_->call(name, &group_, function) && core_->settle(name, group_);
  }
  template <class Calls>
  bool grouped(const Calls& calls) {
    const nccl::Api& api = core_->api();
    return core_->call("ncclGroupStart", &group_, [&] { return api.group_start(); }) && calls() &&
           call("ncclGroupEnd", [&] { return api.group_end(); });
  }

  template <class Start>
  WorkPtr enqueue(Operation kind, std::span<const std::byte> data, int64_t sent, int64_t received,
                  Start start) {
    if (size() == 1 || data.empty()) return std::make_shared<EndedWork>(core_->failure());
    auto made = operation(kind, data, sent, received, std::move(start));
    if (!made) return fail(made.error());
    core_->enqueue(*made);
    return std::make_shared<NcclWork>(core_, *std::move(made));
  }
  /// One that begins after what the device has been given so far.
  template <class Start>
  Result<std::shared_ptr<NcclOperation>> operation(Operation kind, std::span<const std::byte> data,
                                                   int64_t sent, int64_t received, Start start) {
    auto made = std::make_shared<NcclOperation>();
    made->group = &group_;
    made->kind = kind;
    made->bytes = static_cast<int64_t>(data.size());
    made->bytes_sent = sent;
    made->bytes_received = received;
    made->start = std::move(start);
    TRAINYARD_ASSIGN(made->after, group_.stream->device_now());
    return made;
  }

  WorkPtr fail(const Error& error) {
    abort(error, {});
    return std::make_shared<EndedWork>(error);
  }
  WorkPtr refuse(Operation kind, DType dtype, ReduceOp op) {
    return fail(
        {ErrorCode::kInvalidConfig,
         "NCCL: " + std::string(name_of(kind)) + " of " + std::string(name_of(dtype)) + " by " +
             std::string(name_of(op)) +
             ": found one whose bits depend on an order that NCCL chooses, or one that NCCL lacks, "
             "wanted a sum of integers, min or max, or a reduce_scatter of fp32 sums"});
  }
  Status check(std::span<std::byte> data, std::span<const int64_t> counts, DType dtype) const {
    const int64_t sum = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    if (std::ssize(counts) == size() && sum * size_of(dtype) == std::ssize(data)) return {};
    return Error{ErrorCode::kInvalidConfig,
                 "NCCL: found " + std::to_string(counts.size()) + " counts of " +
                     std::to_string(sum) + " elements for " + std::to_string(data.size()) +
                     " bytes, wanted " + std::to_string(size()) + " that add up to these"};
  }

  const CorePtr core_;
  NcclGroup& group_;
};

class NcclTransport final : public DeviceTransport {
 public:
  NcclTransport(engine::Device& device, Communicator& world, CorePtr core)
      : device_(device), world_(world), core_(std::move(core)) {}
  ~NcclTransport() override {
    (void)close();
    if (!core_->is_stuck()) core_->release_streams();
  }
  NcclTransport(const NcclTransport&) = delete;
  NcclTransport& operator=(const NcclTransport&) = delete;

  Status begin() {
    TRAINYARD_ASSIGN(auto stream, device_.side_stream());
    collectives_ = &core_->add(std::move(stream));
    core_->start();
    const auto version = std::make_shared<int>(0);
    const auto ask = [core = core_.get(), version]() -> Status {
      const bool known = core->call("ncclGetVersion", nullptr,
                                    [&] { return core->api().get_version(version.get()); });
      return known ? Status() : core->failure();
    };
    TRAINYARD_TRY(core_->run(ask));
    TRAINYARD_TRY(nccl::check_version(*version));
    if (world_.size() == 1) return {};
    // Nobody makes a group with a rank that has no library.
    TRAINYARD_TRY(world_.barrier()->wait());
    std::vector<int> everyone(static_cast<size_t>(world_.size()));
    std::iota(everyone.begin(), everyone.end(), 0);
    // Another thread waits in it: that excuses nobody in the groups of training.
    TRAINYARD_ASSIGN(guard_, world_.sub_group(everyone, Waits::kApart));
    core_->watch(*guard_);
    return {};
  }

  Result<std::unique_ptr<StepCommunicator>> make(Communicator& host, GroupUse use) override {
    auto group = std::make_unique<NcclGroup>();
    group->host = &host;
    group->rank = host.rank();
    group->size = host.size();
    const bool collectives = use != GroupUse::kMessages;
    group->ctas_max = collectives ? kNcclCollectiveCtas : kNcclMessageCtas;
    group->stream = collectives_;
    if (!collectives) {
      TRAINYARD_ASSIGN(auto stream, device_.side_stream());
      group->stream = &core_->add(std::move(stream));
    }
    NcclGroup& added = core_->add(std::move(group));
    auto made = std::make_unique<NcclCommunicator>(core_, added);
    if (host.size() > 1) {
      auto meeting = std::make_unique<Meeting>();
      meeting->group = &added;
      meeting->communicator = made.get();
      meeting->use = use;
      meeting->ranks.assign(static_cast<size_t>(host.size()), world_.rank());
      if (host.rank() == 0) {
        TRAINYARD_ASSIGN(meeting->id, unique_id());
      }
      // Nobody waits here: members make their groups in different orders.
      const std::vector<int64_t> ones(meeting->ranks.size(), 1);
      meeting->told_ranks =
          host.all_gather(std::as_writable_bytes(std::span(meeting->ranks)), ones, DType::kInt32);
      meeting->told_id = host.broadcast(std::as_writable_bytes(std::span(meeting->id.data)), 0);
      meetings_.push_back(std::move(meeting));
    }
    return std::unique_ptr<StepCommunicator>(std::move(made));
  }

  Status open() override {
    Status opened = meet();
    if (!opened) core_->fail(opened.error(), guard_ ? guard_->lost_ranks() : std::vector<int>());
    is_open_ = opened.has_value();
    return opened;
  }

  Status close() override {
    if (!is_open_)
      core_->fail({ErrorCode::kAborted, "NCCL: not all of its groups were created"}, {});
    Status closed = core_->close([this] { return world_.barrier()->wait(); });
    for (const auto& meeting : meetings_) {  // peers write to them
      (void)meeting->told_ranks->wait();
      (void)meeting->told_id->wait();
    }
    meetings_.clear();
    return closed;
  }
  bool is_stuck() const override { return core_->is_stuck(); }

 private:
  /// Of a group that is being made.
  struct Meeting {
    NcclGroup* group = nullptr;
    NcclCommunicator* communicator = nullptr;
    GroupUse use = GroupUse::kCollectives;
    nccl::UniqueId id;
    std::vector<int> ranks;
    WorkPtr told_ranks;
    WorkPtr told_id;
  };

  Result<nccl::UniqueId> unique_id() {
    const auto id = std::make_shared<nccl::UniqueId>();
    const auto make = [core = core_.get(), id]() -> Status {
      const bool made = core->call("ncclGetUniqueId", nullptr,
                                   [&] { return core->api().get_unique_id(id.get()); });
      return made ? Status() : core->failure();
    };
    TRAINYARD_TRY(core_->run(make));
    return *id;
  }

  Status meet() {
    std::vector<std::pair<NcclGroup*, nccl::UniqueId>> made;
    for (const auto& meeting : meetings_) {
      TRAINYARD_TRY(meeting->told_ranks->wait());
      TRAINYARD_TRY(meeting->told_id->wait());
      meeting->group->ranks = describe_ranks(meeting->ranks);
      made.emplace_back(meeting->group, meeting->id);
    }
    TRAINYARD_TRY(core_->run([core = core_.get(), made] { return core->create(made); }));
    return warm_up();
  }

  /// The library connects peers, and allocates, at the first operation of a kind: that must not
  /// wait for a kernel of a step, nor the step for it. Nor may one group wait for another: where
  /// the ends of a pipeline are joined, every rank would wait for the one before it.
  Status warm_up() {
    int64_t most = 32;  // bytes each way
    for (const auto& meeting : meetings_)
      most = std::max(most, std::ssize(meeting->ranks));
    const int64_t room = (2 * most + 63) / 64 * 64;
    TRAINYARD_ASSIGN(warm_up_, device_.memory().allocate(room * std::ssize(meetings_)));
    std::span<std::byte> memory = warm_up_->bytes();
    std::vector<std::shared_ptr<NcclOperation>> all;
    for (const auto& meeting : meetings_) {
      TRAINYARD_ASSIGN(auto operation, meeting->communicator->first_operation(
                                           meeting->use, memory.first(static_cast<size_t>(room))));
      all.push_back(std::move(operation));
      memory = memory.subspan(static_cast<size_t>(room));
    }
    if (all.empty()) return {};
    core_->enqueue_together(all);
    Status warm;
    for (const auto& operation : all) {
      Status status = NcclWork(core_, operation).wait();
      if (warm) warm = std::move(status);
    }
    TRAINYARD_TRY(warm);
    TRAINYARD_TRY(device_.wait());
    warm_up_.reset();
    return {};
  }

  engine::Device& device_;
  Communicator& world_;
  std::unique_ptr<Communicator> guard_;  // outlives what listens to it
  const CorePtr core_;
  engine::SideStream* collectives_ = nullptr;
  std::vector<std::unique_ptr<Meeting>> meetings_;
  /// After a failure until this goes: freeing it waits for a GPU that may hang.
  std::unique_ptr<engine::MemoryBlock> warm_up_;
  bool is_open_ = false;
};

}  // namespace

Result<std::unique_ptr<DeviceTransport>> make_nccl_transport(engine::Device& device,
                                                             Communicator& world,
                                                             const NcclOptions& options) {
  const auto begin = [&]() -> Result<std::unique_ptr<DeviceTransport>> {
    NcclCore::Settings settings{
        .api = {}, .rank = world.rank(), .deadline = options.deadline, .grace = options.grace};
    if (options.api != nullptr) {
      settings.api = *options.api;
    } else {
      TRAINYARD_ASSIGN(settings.api, nccl::load());
    }
    auto transport =
        std::make_unique<NcclTransport>(device, world, std::make_shared<NcclCore>(settings));
    TRAINYARD_TRY(transport->begin());
    return std::unique_ptr<DeviceTransport>(std::move(transport));
  };
  Result<std::unique_ptr<DeviceTransport>> made = begin();
  if (!made) world.abort(made.error());
  return made;
}

}  // namespace trainyard::comm

#include "tests/unit/worker/device/guarded_device.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <sys/mman.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "kernels/cpu/cpu_kernel_set.h"
#include "kernels/head_parts.h"
#include "tests/unit/worker/device/operation_addresses.h"
#include "worker/device/cpu_device.h"

namespace trainyard::engine::testing {

class GuardedMemory::Block final : public MemoryBlock {
 public:
  Block(GuardedMemory& memory, size_t bytes) : memory_(memory), bytes_(bytes) {
    if (bytes == 0) return;
    const int file = ::memfd_create("guarded", 0);
    TRAINYARD_CHECK(file >= 0 && ::ftruncate(file, static_cast<off_t>(bytes)) == 0);
    guarded_ = map(file, PROT_NONE);
    reachable_ = map(file, PROT_READ | PROT_WRITE);
    ::close(file);
    const std::lock_guard lock(memory_.mutex_);
    memory_.blocks_.push_back(this);
  }
  ~Block() override {
    {
      const std::lock_guard lock(memory_.mutex_);
      std::erase(memory_.blocks_, this);
    }
    if (bytes_ == 0) return;
    ::munmap(guarded_, bytes_);
    ::munmap(reachable_, bytes_);
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  std::span<std::byte> bytes() override { return {guarded_, bytes_}; }
  void set_open(bool open) {
    TRAINYARD_CHECK(::mprotect(guarded_, bytes_, open ? PROT_READ | PROT_WRITE : PROT_NONE) == 0);
  }
  /// Null for an address outside.
  std::byte* reachable(const std::byte* address) const {
    const bool inside =
        std::less_equal<>()(guarded_, address) && std::less<>()(address, guarded_ + bytes_);
    return inside ? reachable_ + (address - guarded_) : nullptr;
  }

 private:
  std::byte* map(int file, int protection) const {
    void* const data = ::mmap(nullptr, bytes_, protection, MAP_SHARED, file, 0);
    TRAINYARD_CHECK(data != MAP_FAILED);
    return static_cast<std::byte*>(data);
  }

  GuardedMemory& memory_;
  size_t bytes_;
  std::byte* guarded_ = nullptr;
  std::byte* reachable_ = nullptr;
};

Result<std::unique_ptr<MemoryBlock>> GuardedMemory::allocate(int64_t bytes) {
  return std::make_unique<Block>(*this, static_cast<size_t>(bytes));
}

std::byte* GuardedMemory::reachable(std::byte* address) const {
  const std::lock_guard lock(mutex_);
  for (const Block* block : blocks_) {
    if (std::byte* found = block->reachable(address)) return found;
  }
  return address;
}

bool GuardedMemory::holds(const void* address) const {
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(blocks_, [&](const Block* block) {
    return block->reachable(static_cast<const std::byte*>(address)) != nullptr;
  });
}

void GuardedMemory::set_open(bool open) {
  for (Block* block : blocks_)
    block->set_open(open);
}

namespace {

/// As HeadParts has it.
void copy_head_parts(const kernels::HeadParts& p) {
  int64_t columns = 0;  // of the segments so far
  const int64_t all = std::accumulate(p.segments.begin(), p.segments.end(), int64_t{0});
  for (const int64_t segment : p.segments) {
    const int64_t width = segment / p.ranks;
    for (int64_t at = 0; at < p.rows * p.ranks; ++at) {
      const int64_t row = at / p.ranks;
      const int64_t rank = at % p.ranks;
      std::byte* const whole =
          static_cast<std::byte*>(p.whole) + (row * all + columns + rank * width) * p.element_bytes;
      std::byte* const part = static_cast<std::byte*>(p.parts) +
                              ((rank * p.rows + row) * all + columns) / p.ranks * p.element_bytes;
      std::memcpy(p.packs ? part : whole, p.packs ? whole : part,
                  static_cast<size_t>(width * p.element_bytes));
    }
    columns += segment;
  }
}

/// Runs kernels of the processor while the device's memory is open. What they are handed has to lie
/// there.
class GuardedKernels final : public kernels::KernelSet, public kernels::HeadPartCopies {
 public:
  GuardedKernels(GuardedDevice& device, GuardedMemory& memory)
      : device_(device),
        memory_(memory),
        inner_(*kernels::make_cpu_kernel_set(kernels::best_isa(), 1)) {}

  int64_t scratch_bytes() const override { return inner_->scratch_bytes(); }
  void set_scratch(std::span<std::byte> scratch) override { inner_->set_scratch(scratch); }
  void gemm(const kernels::GemmParams& p) override { run(&KernelSet::gemm, p); }
  void layer_norm_forward(const kernels::LayerNormForward& p) override {
    run(&KernelSet::layer_norm_forward, p);
  }
  void layer_norm_backward_input(const kernels::LayerNormBackwardInput& p) override {
    run(&KernelSet::layer_norm_backward_input, p);
  }
  void layer_norm_backward_weight(const kernels::LayerNormBackwardWeight& p) override {
    run(&KernelSet::layer_norm_backward_weight, p);
  }
  void head_norm_forward(const kernels::HeadNormForward& p) override {
    run(&KernelSet::head_norm_forward, p);
  }
  void head_norm_backward_input(const kernels::HeadNormBackwardInput& p) override {
    run(&KernelSet::head_norm_backward_input, p);
  }
  void head_norm_backward_weight(const kernels::HeadNormBackwardWeight& p) override {
    run(&KernelSet::head_norm_backward_weight, p);
  }
  void rope(const kernels::Rope& p) override { run(&KernelSet::rope, p); }
  void gated_forward(const kernels::GatedForward& p) override { run(&KernelSet::gated_forward, p); }
  void gated_backward(const kernels::GatedBackward& p) override {
    run(&KernelSet::gated_backward, p);
  }
  void bias_backward(const kernels::BiasBackward& p) override { run(&KernelSet::bias_backward, p); }
  void gelu_forward(const kernels::GeluForward& p) override { run(&KernelSet::gelu_forward, p); }
  void gelu_backward(const kernels::GeluBackward& p) override { run(&KernelSet::gelu_backward, p); }
  void dropout_add(const kernels::DropoutAdd& p) override { run(&KernelSet::dropout_add, p); }
  void dropout_backward(const kernels::DropoutBackward& p) override {
    run(&KernelSet::dropout_backward, p);
  }
  void embedding_forward(const kernels::EmbeddingForward& p) override {
    run(&KernelSet::embedding_forward, p);
  }
  void embedding_backward(const kernels::EmbeddingBackward& p) override {
    run(&KernelSet::embedding_backward, p);
  }
  void attention_forward(const kernels::AttentionForward& p) override {
    run(&KernelSet::attention_forward, p);
  }
  void attention_backward(const kernels::AttentionBackward& p) override {
    run(&KernelSet::attention_backward, p);
  }
  void cross_entropy(const kernels::CrossEntropy& p) override { run(&KernelSet::cross_entropy, p); }
  void vocabulary_statistics(const kernels::VocabularyStatistics& p) override {
    run(&KernelSet::vocabulary_statistics, p);
  }
  void round_exact(const kernels::RoundExact& p) override { run(&KernelSet::round_exact, p); }
  void sum_of_squares(const kernels::SumOfSquares& p) override {
    run(&KernelSet::sum_of_squares, p);
  }
  void adamw(std::span<const kernels::AdamW> tensors) override { run(&KernelSet::adamw, tensors); }
  /// `x` may be host_memory().
  void cast_to_bf16(const float* x, uint16_t* y, int64_t count) override {
    run_on({y}, [&] { inner_->cast_to_bf16(x, y, count); });
  }
  void clear(void* data, int64_t bytes) override {
    run_on({data}, [&] { inner_->clear(data, bytes); });
  }
  void copy(const void* from, void* to, int64_t bytes) override {
    run_on({from, to}, [&] { inner_->copy(from, to, bytes); });
  }
  void copy(const kernels::HeadParts& p) override {
    run_on(addresses_of(p), [&] { copy_head_parts(p); });
  }
  void accumulate(const kernels::GradientSum& x, const kernels::GradientSum& sums, int64_t count,
                  bool overwrite) override {
    run_on({x.data(), sums.data()}, [&] { inner_->accumulate(x, sums, count, overwrite); });
  }
  kernels::KernelCounters counters() const override { return inner_->counters(); }

 private:
  template <class Parameter, class Argument>
  void run(void (KernelSet::*kernel)(Parameter), const Argument& p) {
    run_on(addresses_of(p), [&] { (inner_.get()->*kernel)(p); });
  }
  template <class Kernel>
  void run_on(const Addresses& addresses, const Kernel& kernel) {
    for (const void* address : addresses)
      TRAINYARD_CHECK(address == nullptr || memory_.holds(address));
    device_.flush();
    memory_.set_open(true);
    kernel();
    memory_.set_open(false);
  }

  GuardedDevice& device_;
  GuardedMemory& memory_;
  std::unique_ptr<kernels::KernelSet> inner_;
};

/// Copies at once: what was enqueued has run at now().
class GuardedCopies final : public CopyStream {
 public:
  explicit GuardedCopies(GuardedDevice& device) : device_(device) {}
  Result<std::unique_ptr<Moment>> now() override {
    device_.flush();
    return std::make_unique<Moment>();
  }
  Status after(const Moment& /*moment*/) override { return {}; }
  Status copy(std::span<const CopyRange> ranges, const std::stop_token& stop) override {
    if (stop.stop_requested()) return Error{ErrorCode::kAborted, "no copy any more"};
    if (!device_.takes_copy()) return Error{ErrorCode::kInternal, "the device is broken"};
    for (const CopyRange& range : ranges) {
      const auto from = device_.reachable({const_cast<std::byte*>(range.from), range.bytes});
      std::memcpy(device_.reachable({range.to, range.bytes}).data(), from.data(), from.size());
    }
    return {};
  }

 private:
  GuardedDevice& device_;
};

/// A collective on a copy of its buffer: what it leaves is in place once somebody has waited for
/// it, and never before.
class LateWork final : public comm::Work {
 public:
  template <class Begin>
  LateWork(std::span<std::byte> data, const Begin& begin)
      : data_(data), copy_(data.begin(), data.end()), work_(begin(std::span(copy_))) {}

  bool done() const override { return work_->done(); }
  Status wait() override {
    TRAINYARD_TRY(work_->wait());
    std::copy(copy_.begin(), copy_.end(), data_.begin());
    return {};
  }
  void cancel() override { work_->cancel(); }

 private:
  std::span<std::byte> data_;
  std::vector<std::byte> copy_;
  comm::WorkPtr work_;
};

class DeviceCommunicator final : public comm::Communicator {
 public:
  DeviceCommunicator(comm::Communicator& host, std::unique_ptr<comm::Communicator> owned,
                     GuardedDevice& device)
      : host_(host), owned_(std::move(owned)), device_(device) {}

  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }
  int64_t generation() const override { return host_.generation(); }
  comm::WorkPtr all_reduce(std::span<std::byte> data, DType dtype, comm::ReduceOp op) override {
    return late(data, [&](std::span<std::byte> copy) { return host_.all_reduce(copy, dtype, op); });
  }
  comm::WorkPtr reduce_scatter(std::span<std::byte> data, std::span<const int64_t> counts,
                               DType dtype, comm::ReduceOp op) override {
    return late(data, [&](std::span<std::byte> copy) {
      return host_.reduce_scatter(copy, counts, dtype, op);
    });
  }
  comm::WorkPtr all_gather(std::span<std::byte> data, std::span<const int64_t> counts,
                           DType dtype) override {
    return late(data,
                [&](std::span<std::byte> copy) { return host_.all_gather(copy, counts, dtype); });
  }
  comm::WorkPtr broadcast(std::span<std::byte> data, int root) override {
    return host_.broadcast(on_host(data), root);
  }
  comm::WorkPtr reduce(std::span<std::byte> data, DType dtype, comm::ReduceOp op,
                       int root) override {
    return host_.reduce(on_host(data), dtype, op, root);
  }
  comm::WorkPtr scatter(std::span<const std::byte> send, std::span<std::byte> receive,
                        std::span<const int64_t> counts, DType dtype, int root) override {
    return host_.scatter(on_host(send), on_host(receive), counts, dtype, root);
  }
  comm::WorkPtr gather(std::span<const std::byte> send, std::span<std::byte> receive,
                       std::span<const int64_t> counts, DType dtype, int root) override {
    return host_.gather(on_host(send), on_host(receive), counts, dtype, root);
  }
  using Communicator::all_to_all;
  comm::WorkPtr all_to_all(std::span<const std::byte> send, std::span<const int64_t> send_counts,
                           std::span<std::byte> receive, std::span<const int64_t> receive_counts,
                           DType dtype) override {
    return host_.all_to_all(on_host(send), send_counts, on_host(receive), receive_counts, dtype);
  }
  comm::WorkPtr barrier() override { return host_.barrier(); }
  comm::WorkPtr batch_point_to_point(std::vector<comm::PointToPoint> transfers,
                                     const comm::PointToPointOptions& options) override {
    for (comm::PointToPoint& transfer : transfers)
      transfer.data = on_host(transfer.data);
    return host_.batch_point_to_point(std::move(transfers), options);
  }
  Result<std::unique_ptr<comm::Communicator>> sub_group(std::span<const int> ranks,
                                                        comm::Waits waits) override {
    TRAINYARD_ASSIGN(auto group, host_.sub_group(ranks, waits));
    comm::Communicator& made = *group;
    return std::make_unique<DeviceCommunicator>(made, std::move(group), device_);
  }
  void abort(const Error& reason, std::span<const int> lost_ranks) override {
    host_.abort(reason, lost_ranks);
  }
  void observe(trace::SpanSink* sink, trace::Track track) override { host_.observe(sink, track); }
  comm::Counters counters() const override { return host_.counters(); }
  std::vector<int> lost_ranks() const override { return host_.lost_ranks(); }

 private:
  template <class Begin>
  comm::WorkPtr late(std::span<std::byte> data, const Begin& begin) {
    return std::make_shared<LateWork>(on_host(data), begin);
  }
  std::span<std::byte> on_host(std::span<std::byte> data) { return device_.for_communicator(data); }
  std::span<const std::byte> on_host(std::span<const std::byte> data) {
    return on_host(std::span(const_cast<std::byte*>(data.data()), data.size()));
  }

  comm::Communicator& host_;
  std::unique_ptr<comm::Communicator> owned_;  // null where the caller owns it
  GuardedDevice& device_;
};

}  // namespace

GuardedDevice::GuardedDevice() : kernels_(std::make_unique<GuardedKernels>(*this, memory_)) {}
GuardedDevice::~GuardedDevice() = default;

DeviceLimits GuardedDevice::limits() const { return cpu_limits(); }
kernels::DeviceFormats GuardedDevice::formats(DType compute) const { return cpu_formats(compute); }

void GuardedDevice::copy(std::span<const CopyRange> ranges) {
  enqueued_.insert(enqueued_.end(), ranges.begin(), ranges.end());
}

Result<std::unique_ptr<CopyStream>> GuardedDevice::copy_stream() {
  return std::make_unique<GuardedCopies>(*this);
}

Status GuardedDevice::wait(std::chrono::milliseconds /*deadline*/) {
  flush();
  return {};
}

void GuardedDevice::flush() {
  for (const CopyRange& range : enqueued_) {
    if (range.bytes > 0)
      std::memcpy(memory_.reachable(range.to), memory_.reachable(range.from), range.bytes);
  }
  enqueued_.clear();
}

std::span<std::byte> GuardedDevice::for_communicator(std::span<std::byte> data) {
  flush();
  return {memory_.reachable(data.data()), data.size()};
}

std::unique_ptr<comm::Communicator> on_device(comm::Communicator& host, GuardedDevice& device) {
  return std::make_unique<DeviceCommunicator>(host, nullptr, device);
}

}  // namespace trainyard::engine::testing

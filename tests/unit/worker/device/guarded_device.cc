#include "tests/unit/worker/device/guarded_device.h"

#include <cstring>
#include <functional>
#include <sys/mman.h>
#include <unistd.h>
#include <utility>

#include "common/base/check.h"
#include "kernels/cpu/cpu_kernel_set.h"
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
    memory_.blocks_.push_back(this);
  }
  ~Block() override {
    std::erase(memory_.blocks_, this);
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
  for (const Block* block : blocks_) {
    if (std::byte* found = block->reachable(address)) return found;
  }
  return address;
}

void GuardedMemory::set_open(bool open) {
  for (Block* block : blocks_)
    block->set_open(open);
}

namespace {

/// Runs kernels of the processor while the device's memory is open.
class GuardedKernels final : public kernels::KernelSet {
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
  void sum_of_squares(const kernels::SumOfSquares& p) override {
    run(&KernelSet::sum_of_squares, p);
  }
  void adamw(const kernels::AdamW& p) override { run(&KernelSet::adamw, p); }
  void cast_to_bf16(const float* x, uint16_t* y, int64_t count) override {
    run(&KernelSet::cast_to_bf16, x, y, count);
  }
  void clear(void* data, int64_t bytes) override { run(&KernelSet::clear, data, bytes); }
  void accumulate(const int64_t* x, int64_t* sums, int64_t count, bool overwrite) override {
    run(&KernelSet::accumulate, x, sums, count, overwrite);
  }
  kernels::KernelCounters counters() const override { return inner_->counters(); }

 private:
  template <class... Parameters, class... Arguments>
  void run(void (KernelSet::*kernel)(Parameters...), const Arguments&... arguments) {
    device_.flush();
    memory_.set_open(true);
    (inner_.get()->*kernel)(arguments...);
    memory_.set_open(false);
  }

  GuardedDevice& device_;
  GuardedMemory& memory_;
  std::unique_ptr<kernels::KernelSet> inner_;
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
    return host_.all_reduce(on_host(data), dtype, op);
  }
  comm::WorkPtr reduce_scatter(std::span<std::byte> data, std::span<const int64_t> counts,
                               DType dtype, comm::ReduceOp op) override {
    return host_.reduce_scatter(on_host(data), counts, dtype, op);
  }
  comm::WorkPtr all_gather(std::span<std::byte> data, std::span<const int64_t> counts,
                           DType dtype) override {
    return host_.all_gather(on_host(data), counts, dtype);
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

void GuardedDevice::copy(std::span<const CopyRange> ranges) {
  enqueued_.insert(enqueued_.end(), ranges.begin(), ranges.end());
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

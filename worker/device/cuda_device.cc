#include "worker/device/cuda_device.h"

#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "kernels/cuda/attention_cudnn.h"
#include "kernels/cuda/cublaslt.h"
#include "worker/device/cuda_copy_stream.h"
#include "worker/device/cuda_kernel_set.h"
#include "worker/device/cuda_plan.h"
#include "worker/device/cuda_side_stream.h"
#include "worker/device/cuda_stream.h"

namespace trainyard::engine {
namespace {

constexpr int kCapabilityMajorMin = 8;
/// The libraries that the runtime this program is built with belongs to.
constexpr char kLibrary[] = "libcublasLt.so.13";

std::string version_of(int number) {
  return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
}
Error refused(const std::string& found, const std::string& wanted) {
  return {ErrorCode::kInvalidConfig, "engine.device: found Cuda, " + found + ", wanted " + wanted};
}

/// Where blocks of one kind of memory are. A checkpoint's writer frees its copy from its own
/// thread.
class Places {
 public:
  void add(const std::byte* data, size_t size) {
    const std::lock_guard lock(mutex_);
    places_[data] = size;
  }
  void remove(const std::byte* data) {
    const std::lock_guard lock(mutex_);
    places_.erase(data);
  }
  bool hold(const std::byte* address) const {
    const std::lock_guard lock(mutex_);
    const auto after = places_.upper_bound(address);
    if (after == places_.begin()) return false;
    const auto& [data, size] = *std::prev(after);
    return std::less<>()(address, data + size);
  }

 private:
  mutable std::mutex mutex_;
  std::map<const std::byte*, size_t, std::less<>> places_;
};

class Block final : public MemoryBlock {
 public:
  using Free = cudaError_t (*)(void*);
  Block(Places& places, void* data, size_t size, Free free)
      : places_(places), data_(static_cast<std::byte*>(data)), size_(size), free_(free) {
    places_.add(data_, size_);
  }
  ~Block() override {
    places_.remove(data_);
    free_(data_);
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  std::span<std::byte> bytes() override { return {data_, size_}; }

 private:
  Places& places_;
  std::byte* data_;
  size_t size_;
  Free free_;
};

struct MemoryInfo {
  size_t free = 0, total = 0;
};

/// Memory of the calling thread's GPU; zeros if the driver does not answer.
MemoryInfo memory_info() {
  MemoryInfo info;
  if (cudaMemGetInfo(&info.free, &info.total) == cudaSuccess) return info;
  (void)cudaGetLastError();
  return {};
}

class CudaMemory final : public MemorySource {
 public:
  explicit CudaMemory(CudaStream& stream) : stream_(stream) {}
  Result<std::unique_ptr<MemoryBlock>> allocate(int64_t bytes) override {
    TRAINYARD_TRY(stream_.status());
    void* data = nullptr;
    const auto size = static_cast<size_t>(bytes);
    const cudaError_t error = size > 0 ? cudaMalloc(&data, size) : cudaSuccess;
    if (error == cudaErrorMemoryAllocation) return out_of_memory(bytes);
    if (!stream_.note("cudaMalloc", error)) return stream_.status().error();
    auto block = std::make_unique<Block>(places_, data, size, cudaFree);
    if (size > 0 && !stream_.note("clear", cudaMemsetAsync(data, 0, size, stream_.get()))) {
      return stream_.status().error();
    }
    return block;
  }
  bool holds(const std::byte* address) const { return places_.hold(address); }

 private:
  static Error out_of_memory(int64_t wanted) {
    (void)cudaGetLastError();
    const MemoryInfo found = memory_info();
    return {ErrorCode::kUnavailable,
            "GPU memory: found " + std::to_string(found.free) + " of " +
                std::to_string(found.total) + " bytes free, wanted " + std::to_string(wanted) +
                " more; use a smaller engine.batch.microSequences, engine.parallelism.recompute, "
                "or a GPU that nothing else uses (`trainyard plan` shows what the job takes)"};
  }

  CudaStream& stream_;
  Places places_;
};

class PinnedMemory final : public MemorySource {
 public:
  Result<std::unique_ptr<MemoryBlock>> allocate(int64_t bytes) override {
    void* data = nullptr;
    const auto size = static_cast<size_t>(bytes);
    const cudaError_t error = size > 0 ? cudaMallocHost(&data, size) : cudaSuccess;
    if (error != cudaSuccess) {
      (void)cudaGetLastError();
      return cuda_error("pinned host memory of " + std::to_string(bytes) + " bytes", error);
    }
    if (size > 0) std::memset(data, 0, size);
    return std::make_unique<Block>(places_, data, size, cudaFreeHost);
  }
  bool holds(const std::byte* address) const { return places_.hold(address); }

 private:
  Places places_;
};

class CudaDevice final : public Device {
 public:
  CudaDevice(const CudaDeviceOptions& options, CudaFacts facts, std::unique_ptr<CudaStream> stream,
             std::unique_ptr<kernels::cuda::Gemm> gemm,
             std::unique_ptr<kernels::cuda::Attention> attention)
      : facts_(std::move(facts)),
        index_(options.index),
        host_threads_(options.host_threads),
        sums_(options.shapes.sums),
        graphs_(options.graphs),
        stream_(std::move(stream)),
        memory_(*stream_),
        kernels_(*stream_, std::move(gemm), std::move(attention), options.shapes) {}

  std::string name() const override {
    return "CUDA, " + facts_.name + ", compute capability " +
           std::to_string(facts_.capability_major) + "." + std::to_string(facts_.capability_minor);
  }
  DeviceLimits limits() const override { return cuda_limits(); }
  kernels::DeviceFormats formats(DType compute) const override {
    return cuda_formats(compute, sums_);
  }
  int host_threads() const override { return host_threads_; }
  MemorySource& memory() override { return memory_; }
  int64_t memory_in_use() const override {
    const MemoryInfo info = memory_info();
    return static_cast<int64_t>(info.total - info.free);
  }
  MemorySource& host_memory() override { return host_memory_; }
  kernels::KernelSet& kernels() override { return kernels_; }
  Status status() const override { return stream_->status(); }
  void copy(std::span<const CopyRange> ranges) override;
  bool repeats_parts() const override { return graphs_; }
  std::string_view why_parts_are_plain() const override { return stream_->why_parts_are_plain(); }
  void begin_part(int part, uint64_t key) override {
    kernels_.forget_rows();
    stream_->begin_part(part, key);
  }
  void end_part(bool is_whole) override { stream_->end_part(is_whole); }
  void trace_to(trace::SpanSink* sink) override { stream_->trace_to(sink); }
  void begin_span(const trace::Span& span) override { stream_->begin_span(span); }
  void end_span() override { stream_->end_span(); }
  Result<std::unique_ptr<CopyStream>> copy_stream() override {
    return make_cuda_copy_stream(*stream_, index_);
  }
  Result<std::unique_ptr<SideStream>> side_stream() override {
    return make_cuda_side_stream(*stream_, index_);
  }
  Status wait(std::chrono::milliseconds deadline) override { return stream_->wait(deadline); }
  std::chrono::milliseconds deadline() const override { return stream_->deadline(); }
  bool is_stuck() const override { return stream_->is_stuck(); }

 private:
  CudaFacts facts_;
  int index_;
  int host_threads_;
  DType sums_;
  bool graphs_;
  std::unique_ptr<CudaStream> stream_;
  CudaMemory memory_;
  PinnedMemory host_memory_;
  CudaKernelSet kernels_;
};

void CudaDevice::copy(std::span<const CopyRange> ranges) {
  for (const CopyRange& range : ranges) {
    if (range.bytes == 0 || !status()) continue;
    const bool to_device = memory_.holds(range.to);
    const bool from_device = memory_.holds(range.from);
    if (to_device && !from_device && !host_memory_.holds(range.from)) {
      stream_->upload(range.to, range.from, range.bytes);
    } else if (from_device && !to_device && !host_memory_.holds(range.to)) {
      stream_->download(range.to, range.from, range.bytes);
    } else if (stream_->enqueues()) {
      stream_->note("copy", cudaMemcpyAsync(range.to, range.from, range.bytes, cudaMemcpyDefault,
                                            stream_->get()));
    }
  }
}

Result<kernels::cuda::cublaslt::Api> open_library() {
  auto api = kernels::cuda::cublaslt::load(kLibrary);
  if (api) return api;
  return Error{ErrorCode::kInvalidConfig,
               "engine.device: found Cuda, but no cuBLASLt (" + api.error().message + "), wanted " +
                   kLibrary +
                   " of CUDA 13: install the package libcublas-13-0 (or the wheel nvidia-cublas) "
                   "and put its folder into LD_LIBRARY_PATH"};
}

/// By cuDNN, whose backward pass has the same bits in every run.
std::unique_ptr<kernels::cuda::Attention> make_attention(const CudaDeviceOptions& options) {
  if (options.shapes.library_attention == 0) return nullptr;
  const auto cudnn = [] { return kernels::cuda::open_cudnn_attention({.deterministic = true}); };
  const auto log = [tell = options.log](const std::string& line) {
    if (tell) tell(line);
  };
  return std::make_unique<kernels::cuda::Attention>(
      options.attention ? options.attention : kernels::cuda::Attention::Open(cudnn), log,
      static_cast<size_t>(cuda_scratch(options.shapes).attention_bytes));
}

}  // namespace

Result<CudaFacts> find_cuda_device(int index) {
  CudaFacts facts;
  int runtime = 0;
  if (cudaDriverGetVersion(&facts.driver_version) != cudaSuccess ||
      cudaRuntimeGetVersion(&runtime) != cudaSuccess) {
    (void)cudaGetLastError();
  }
  if (facts.driver_version == 0) {
    return refused("no NVIDIA driver",
                   "one: install it (on Kubernetes: nodes with the GPU operator, and "
                   "resources.limits nvidia.com/gpu), or use engine.device: Cpu");
  }
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) (void)cudaGetLastError();
  // Within a major version any driver does.
  if (error == cudaErrorInsufficientDriver || facts.driver_version / 1000 < runtime / 1000) {
    return refused("a driver for CUDA " + version_of(facts.driver_version),
                   "one for CUDA " + version_of(runtime / 1000 * 1000) +
                       " or newer: update it, or use engine.device: Cpu");
  }
  if (Error failed = cuda_error("counting GPUs", error); failed.code == ErrorCode::kUnavailable) {
    return failed;
  }
  if (error != cudaSuccess && error != cudaErrorNoDevice) {
    return refused(std::string("the driver's answer ") + cudaGetErrorName(error) + " (" +
                       cudaGetErrorString(error) + ")",
                   "a GPU that works: see nvidia-smi");
  }
  if (index >= count) {
    return refused(std::to_string(count) + " GPUs that this process sees",
                   "at least " + std::to_string(index + 1) +
                       ", one per rank on this machine: see CUDA_VISIBLE_DEVICES and, on "
                       "Kubernetes, resources.limits "
                       "nvidia.com/gpu, or use engine.device: Cpu");
  }
  cudaDeviceProp properties = {};
  if (const cudaError_t asked = cudaGetDeviceProperties(&properties, index); asked != cudaSuccess) {
    (void)cudaGetLastError();
    return cuda_error("facts of GPU " + std::to_string(index), asked);
  }
  facts.name = properties.name;
  facts.capability_major = properties.major;
  facts.capability_minor = properties.minor;
  facts.memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  if (facts.capability_major < kCapabilityMajorMin) {
    return refused("a GPU (" + facts.name + ") of compute capability " +
                       std::to_string(facts.capability_major) + "." +
                       std::to_string(facts.capability_minor),
                   "8.0 or newer (A100, RTX 30, H100), or engine.device: Cpu");
  }
  return facts;
}

Result<std::unique_ptr<Device>> make_cuda_device(const CudaDeviceOptions& options) {
  TRAINYARD_ASSIGN(CudaFacts facts, find_cuda_device(options.index));
  if (const cudaError_t error = cudaSetDevice(options.index); error != cudaSuccess) {
    (void)cudaGetLastError();
    return cuda_error("choosing GPU " + std::to_string(options.index), error);
  }
  kernels::cuda::cublaslt::Api api;
  if (options.cublaslt != nullptr) {
    api = *options.cublaslt;
  } else {
    TRAINYARD_ASSIGN(api, open_library());
  }
  TRAINYARD_ASSIGN(auto gemm, kernels::cuda::Gemm::create(
                                  api, {.workspace_bytes = static_cast<size_t>(kGemmWorkspaceBytes),
                                        .measures = options.measures,
                                        .plan_file = options.plan_file,
                                        .machine = facts.name + ", driver " +
                                                   std::to_string(facts.driver_version),
                                        .deadline = options.deadline}));
  TRAINYARD_ASSIGN(auto stream, CudaStream::create(options.deadline));
  return std::make_unique<CudaDevice>(options, std::move(facts), std::move(stream), std::move(gemm),
                                      make_attention(options));
}

}  // namespace trainyard::engine

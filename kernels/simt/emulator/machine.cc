// The machine that a program finds, and errors by name.

#include "kernels/simt/emulator/state.h"

using trainyard::simt::detail::device;
using trainyard::simt::detail::error_of;
using trainyard::simt::detail::last_error;
using trainyard::simt::detail::Lock;

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorInsufficientDriver:
      return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorInvalidResourceHandle:
      return "invalid resource handle";
    case cudaErrorNotReady:
      return "device not ready";
    case cudaErrorIllegalAddress:
      return "an illegal memory access was encountered";
    case cudaErrorLaunchFailure:
      return "unspecified launch failure";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated:
      return "operation failed due to a previous error during capture";
    case cudaErrorStreamCaptureUnjoined:
      return "capturing stream has unjoined work";
    case cudaErrorStreamCaptureIsolation:
      return "dependency created on uncaptured work in another stream";
    case cudaErrorStreamCaptureWrongThread:
      return "attempt to terminate a thread-local capture sequence from another thread";
    case cudaErrorCapturedEvent:
      return "operation not permitted on an event last recorded in a capturing stream";
    case cudaErrorUnknown:
      return "unknown error";
  }
  return "unknown error";
}
const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration:
      return "cudaErrorInvalidConfiguration";
    case cudaErrorIllegalAddress:
      return "cudaErrorIllegalAddress";
    case cudaErrorLaunchFailure:
      return "cudaErrorLaunchFailure";
    case cudaErrorStreamCaptureUnsupported:
      return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorStreamCaptureInvalidated:
      return "cudaErrorStreamCaptureInvalidated";
    case cudaErrorStreamCaptureUnjoined:
      return "cudaErrorStreamCaptureUnjoined";
    case cudaErrorStreamCaptureIsolation:
      return "cudaErrorStreamCaptureIsolation";
    case cudaErrorStreamCaptureWrongThread:
      return "cudaErrorStreamCaptureWrongThread";
    case cudaErrorCapturedEvent:
      return "cudaErrorCapturedEvent";
    default:
      return "cudaErrorUnknown";
  }
}
cudaError_t cudaGetLastError() {
  const Lock lock(device.mutex);
  const cudaError_t error = device.sticky != cudaSuccess ? device.sticky : last_error;
  last_error = cudaSuccess;
  return error;
}

cudaError_t cudaDriverGetVersion(int* version) {
  SIMT_CALL(cudaDriverGetVersion);
  *version = trainyard::simt::emulation_options().driver_version;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  SIMT_CALL(cudaRuntimeGetVersion);
  *version = trainyard::simt::emulation_options().runtime_version;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  SIMT_CALL(cudaGetDeviceCount);
  const Lock lock(device.mutex);
  const auto& options = trainyard::simt::emulation_options();
  *count = 0;
  if (options.driver_version < options.runtime_version / 1000 * 1000) {
    return last_error = cudaErrorInsufficientDriver;
  }
  if (options.devices == 0) return last_error = cudaErrorNoDevice;
  *count = options.devices;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int index) {
  SIMT_CALL(cudaGetDeviceProperties);
  const Lock lock(device.mutex);
  const auto& options = trainyard::simt::emulation_options();
  if (index < 0 || index >= options.devices) return last_error = cudaErrorInvalidDevice;
  *properties = {"emulation", static_cast<size_t>(options.memory_bytes), options.capability_major,
                 options.capability_minor};
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int index) {
  const trainyard::simt::LibraryCall call("cudaSetDevice", index);
  if (call.fails()) return error_of(call);
  const Lock lock(device.mutex);
  const bool exists = index >= 0 && index < trainyard::simt::emulation_options().devices;
  if (!exists) return last_error = cudaErrorInvalidDevice;
  trainyard::simt::detail::current_device = index;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  SIMT_CALL(cudaMemGetInfo);
  const Lock lock(device.mutex);
  const int64_t all = trainyard::simt::emulation_options().memory_bytes;
  *total = static_cast<size_t>(all);
  *free = static_cast<size_t>(all - trainyard::simt::allocated_bytes());
  return cudaSuccess;
}

// The machine that a program finds, and errors by name.

#include "kernels/simt/emulator/state.h"

using trainyard::simt::detail::device;
using trainyard::simt::detail::error_of;
using trainyard::simt::detail::last_error;
using trainyard::simt::detail::Lock;

namespace {

struct ErrorText {
  cudaError_t error;
  const char* name;
  const char* text;
};
constexpr ErrorText kErrors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration",
     "invalid configuration argument"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorDevicesUnavailable, "cudaErrorDevicesUnavailable",
     "CUDA-capable device(s) is/are busy or unavailable"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorECCUncorrectable, "cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"},
    {cudaErrorNvlinkUncorrectable, "cudaErrorNvlinkUncorrectable",
     "uncorrectable NVLink error detected during the execution"},
    {cudaErrorContained, "cudaErrorContained",
     "Invalid access of peer GPU memory over nvlink or a hardware error"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress",
     "an illegal memory access was encountered"},
    {cudaErrorHardwareStackError, "cudaErrorHardwareStackError", "hardware stack error"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorSystemNotReady, "cudaErrorSystemNotReady", "system not yet initialized"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined",
     "capturing stream has unjoined work"},
    {cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation",
     "dependency created on uncaptured work in another stream"},
    {cudaErrorCapturedEvent, "cudaErrorCapturedEvent",
     "operation not permitted on an event last recorded in a capturing stream"},
    {cudaErrorStreamCaptureWrongThread, "cudaErrorStreamCaptureWrongThread",
     "attempt to terminate a thread-local capture sequence from another thread"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
};

const ErrorText& text_of(cudaError_t error) {
  for (const ErrorText& one : kErrors)
    if (one.error == error) return one;
  return text_of(cudaErrorUnknown);
}

}  // namespace

const char* cudaGetErrorString(cudaError_t error) { return text_of(error).text; }
const char* cudaGetErrorName(cudaError_t error) { return text_of(error).name; }
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
  *properties = {{},
                 static_cast<size_t>(options.memory_bytes),
                 options.capability_major,
                 options.capability_minor};
  options.name.copy(properties->name, sizeof properties->name - 1);
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

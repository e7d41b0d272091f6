// What libnvidia-ml.so.1 offers and the agent uses, without GPUs: it reads the file that
// TRAINYARD_FAKE_NVML names anew at every call. A line is a key and values: `init CODE` (what
// nvmlInit returns), `count N`, `GPU.KEY VALUE` (GPU.lost 1: its calls say so;
// GPU.handle CODE: what asking for it returns), `xid GPU NUMBER`
// (an event, told once, in the order of the lines), `events 0` (no events here), `hang 1` (calls
// about GPUs never return). TRAINYARD_WITHOUT_HANDLES and TRAINYARD_WITHOUT_READINGS leave
// functions out, as other versions of the library do.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr int kSuccess = 0, kNotSupported = 3, kGpuIsLost = 15;

struct Script {
  std::map<std::string, std::string> values;
  std::vector<std::pair<int, uint64_t>> errors;

  uint64_t number(const std::string& key, uint64_t otherwise) const {
    const auto found = values.find(key);
    return found == values.end() ? otherwise : std::strtoull(found->second.c_str(), nullptr, 0);
  }
};

Script script() {
  Script read;
  const char* const path = std::getenv("TRAINYARD_FAKE_NVML");  // NOLINT(concurrency-mt-unsafe)
  std::ifstream file(path == nullptr ? "" : path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string key;
    words >> key;
    if (key == "xid") {
      std::pair<int, uint64_t> error;
      words >> error.first >> error.second;
      if (words) read.errors.push_back(error);
    } else if (!key.empty()) {
      std::getline(words >> std::ws, read.values[key]);
    }
  }
  while (read.number("hang", 0) != 0)
    std::this_thread::sleep_for(std::chrono::seconds(1));
  return read;
}

// A device is the address of its place here.
[[maybe_unused]] char devices[64];
[[maybe_unused]] int gpu_of(const void* device) {
  return static_cast<int>(static_cast<const char*>(device) - devices);
}

/// The number that the script gives the GPU; kNotSupported where it gives none.
template <class Number>
int tell(const void* device, const char* key, Number* out) {
  const Script now = script();
  const std::string gpu = std::to_string(gpu_of(device));
  if (now.number(gpu + ".lost", 0) != 0) return kGpuIsLost;
  const auto found = now.values.find(gpu + "." + key);
  if (found == now.values.end()) return kNotSupported;
  *out = static_cast<Number>(std::strtoull(found->second.c_str(), nullptr, 0));
  return kSuccess;
}

[[maybe_unused]] int tell_text(const void* device, const char* key, char* out, unsigned bytes) {
  const Script now = script();
  const std::string gpu = std::to_string(gpu_of(device));
  if (now.number(gpu + ".lost", 0) != 0) return kGpuIsLost;
  const auto found = now.values.find(gpu + "." + key);
  if (found == now.values.end()) return kNotSupported;
  std::snprintf(out, bytes, "%s", found->second.c_str());
  return kSuccess;
}

struct Memory {
  unsigned long long total, free, used;
};
struct Utilization {
  unsigned gpu, memory;
};
struct EventData {
  void* device;
  unsigned long long type, data;
  unsigned gpu_instance, compute_instance;
};

}  // namespace

// NOLINTBEGIN(readability-identifier-naming): the names are the library's.
extern "C" {

int nvmlInit_v2() { return static_cast<int>(script().number("init", 0)); }
int nvmlShutdown() { return kSuccess; }
const char* nvmlErrorString(int code) { return code == 9 ? "Driver Not Loaded" : "Unknown Error"; }
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = static_cast<unsigned>(script().number("count", 1));
  return kSuccess;
}
#ifndef TRAINYARD_WITHOUT_HANDLES
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = devices + index;
  return static_cast<int>(script().number(std::to_string(index) + ".handle", kSuccess));
}
#endif
#ifndef TRAINYARD_WITHOUT_READINGS
int nvmlDeviceGetName(void* device, char* out, unsigned bytes) {
  return tell_text(device, "name", out, bytes);
}
int nvmlDeviceGetUUID(void* device, char* out, unsigned bytes) {
  return tell_text(device, "uuid", out, bytes);
}
int nvmlDeviceGetMemoryInfo(void* device, Memory* memory) {
  const int first = tell(device, "total", &memory->total);
  return first != kSuccess ? first : tell(device, "used", &memory->used);
}
int nvmlDeviceGetUtilizationRates(void* device, Utilization* rates) {
  return tell(device, "utilization", &rates->gpu);
}
int nvmlDeviceGetTemperature(void* device, unsigned, unsigned* out) {
  return tell(device, "temperature", out);
}
int nvmlDeviceGetPowerUsage(void* device, unsigned* out) { return tell(device, "power", out); }
int nvmlDeviceGetEnforcedPowerLimit(void* device, unsigned* out) {
  return tell(device, "power_limit", out);
}
int nvmlDeviceGetClockInfo(void* device, unsigned, unsigned* out) {
  return tell(device, "clock", out);
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void* device, unsigned long long* out) {
  return tell(device, "throttle", out);
}
int nvmlDeviceGetTotalEccErrors(void* device, unsigned kind, unsigned, unsigned long long* out) {
  return tell(device, kind == 0 ? "ecc_corrected" : "ecc_uncorrected", out);
}
int nvmlEventSetCreate(void** set) {
  *set = new size_t(0);  // errors told
  return kSuccess;
}
int nvmlDeviceRegisterEvents(void*, unsigned long long, void*) {
  return script().number("events", 1) != 0 ? kSuccess : kNotSupported;
}
int nvmlEventSetWait_v2(void* set, EventData* event, unsigned timeout_ms) {
  size_t& told = *static_cast<size_t*>(set);
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  do {
    const Script now = script();
    if (told < now.errors.size()) {
      const auto& [gpu, xid] = now.errors[told++];
      *event = {devices + gpu, 8, xid, 0, 0};
      return kSuccess;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  } while (std::chrono::steady_clock::now() < end);
  return 10;  // a timeout
}
int nvmlEventSetFree(void* set) {
  delete static_cast<size_t*>(set);
  return kSuccess;
}
#endif
}
// NOLINTEND(readability-identifier-naming)

#include "agent/nvml.h"

#include <algorithm>
#include <dlfcn.h>
#include <thread>
#include <utility>

namespace trainyard::agent {
namespace {

// What is used of NVML's interface, which is stable: functions are never changed, only joined by
// newer versions of another name (NVML API Reference Guide, "Known issues" and "Change log").
using Device = void*;
using EventSet = void*;
using Return = int;
constexpr Return kSuccess = 0;
constexpr Return kNoPermission = 4;
constexpr Return kNoFunction = 13;
constexpr Return kGpuIsLost = 15;
constexpr Return kResetRequired = 16;
constexpr unsigned kTemperatureOfGpu = 0;
constexpr unsigned kClockOfMultiprocessors = 1;
constexpr unsigned kCorrected = 0;
constexpr unsigned kUncorrected = 1;
constexpr unsigned kSinceDriverLoad = 0;
constexpr unsigned long long kXidEvents = 0x8;
constexpr unsigned long long kSlowedByPower = 0x4 | 0x80;  // cap, brake
constexpr unsigned long long kSlowedByHeat = 0x20 | 0x40;  // software's, hardware's
constexpr unsigned long long kSlowedByHardware = 0x8;      // heat or brake, of older drivers
constexpr unsigned kNameBytes = 96;

struct Memory {
  unsigned long long total, free, used;
};
struct Utilization {
  unsigned gpu, memory;  // percent
};
struct EventData {
  Device device;
  unsigned long long type, data;
  unsigned gpu_instance, compute_instance;
};

Error unavailable(const std::string& what) { return {ErrorCode::kUnavailable, what}; }

}  // namespace

struct Nvml::Library {
  void* handle = nullptr;
  bool begun = false;
  Return (*begin)() = nullptr;
  Return (*end)() = nullptr;
  const char* (*words)(Return) = nullptr;
  Return (*device_count)(unsigned*) = nullptr;
  Return (*device_at)(unsigned, Device*) = nullptr;
  Return (*name)(Device, char*, unsigned) = nullptr;
  Return (*uuid)(Device, char*, unsigned) = nullptr;
  Return (*memory)(Device, Memory*) = nullptr;
  Return (*utilization)(Device, Utilization*) = nullptr;
  Return (*temperature)(Device, unsigned, unsigned*) = nullptr;
  Return (*power)(Device, unsigned*) = nullptr;
  Return (*power_limit)(Device, unsigned*) = nullptr;
  Return (*clock)(Device, unsigned, unsigned*) = nullptr;
  Return (*slowdown)(Device, unsigned long long*) = nullptr;
  Return (*ecc_errors)(Device, unsigned, unsigned, unsigned long long*) = nullptr;
  Return (*make_events)(EventSet*) = nullptr;
  Return (*watch_events)(Device, unsigned long long, EventSet) = nullptr;
  Return (*wait_event)(EventSet, EventData*, unsigned) = nullptr;
  Return (*free_events)(EventSet) = nullptr;
  std::vector<Device> devices;  ///< null: the driver gives no access to it
  EventSet events = nullptr;    ///< null: this driver tells of no errors

  Library() = default;
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  ~Library() {
    if (events != nullptr) free_events(events);
    if (begun) end();  // the library stays: threads of its own may outlive us
  }

  /// Finds every function; the name of the first that is missing and without which there are no
  /// GPUs, or null.
  const char* resolve() {
    const auto find = [&](const char* symbol, auto& function) {
      function =
          reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(handle, symbol));
    };
    const char* missing = nullptr;
    const auto need = [&](const char* symbol, auto& function) {
      find(symbol, function);
      if (function == nullptr && missing == nullptr) missing = symbol;
    };
    need("nvmlInit_v2", begin);
    need("nvmlShutdown", end);
    need("nvmlErrorString", words);
    need("nvmlDeviceGetCount_v2", device_count);
    need("nvmlDeviceGetHandleByIndex_v2", device_at);
    find("nvmlDeviceGetName", name);
    find("nvmlDeviceGetUUID", uuid);
    find("nvmlDeviceGetMemoryInfo", memory);
    find("nvmlDeviceGetUtilizationRates", utilization);
    find("nvmlDeviceGetTemperature", temperature);
    find("nvmlDeviceGetPowerUsage", power);
    find("nvmlDeviceGetEnforcedPowerLimit", power_limit);
    find("nvmlDeviceGetClockInfo", clock);
    find("nvmlDeviceGetCurrentClocksThrottleReasons", slowdown);
    find("nvmlDeviceGetTotalEccErrors", ecc_errors);
    find("nvmlEventSetCreate", make_events);
    find("nvmlDeviceRegisterEvents", watch_events);
    find("nvmlEventSetWait_v2", wait_event);
    find("nvmlEventSetFree", free_events);
    return missing;
  }

  bool tells_events() const {
    return make_events != nullptr && watch_events != nullptr && wait_event != nullptr &&
           free_events != nullptr;
  }

  Status find_devices() {
    if (const Return error = begin(); error != kSuccess) return unavailable(words(error));
    begun = true;
    unsigned count = 0;
    if (const Return error = device_count(&count); error != kSuccess) {
      return unavailable(words(error));
    }
    if (count == 0) return unavailable("there is no GPU");
    std::string why = "there is none that this container may use";
    for (unsigned i = 0; i < count; ++i) {
      Device device = nullptr;
      const Return error = device_at(i, &device);
      if (error == kNoPermission) continue;  // counted, but not ours
      if (error != kSuccess) why = "GPU " + std::to_string(i) + ": " + words(error);
      devices.push_back(error == kSuccess ? device : nullptr);
    }
    if (std::all_of(devices.begin(), devices.end(), [](Device d) { return d == nullptr; })) {
      return unavailable(why);
    }
    if (!tells_events() || make_events(&events) != kSuccess) events = nullptr;
    bool any = false;
    for (const Device device : devices) {
      any = (device != nullptr && events != nullptr &&
             watch_events(device, kXidEvents, events) == kSuccess) ||
            any;
    }
    if (!any && events != nullptr) free_events(std::exchange(events, nullptr));
    return {};
  }
};

Nvml::Nvml(std::unique_ptr<Library> library) : library_(std::move(library)) {}
Nvml::~Nvml() = default;

std::vector<std::string> nvml_paths() {
  constexpr char kName[] = "libnvidia-ml.so.1";
  std::vector<std::string> paths = {kName};
  for (const char* folder :
       {"/usr/lib/x86_64-linux-gnu/", "/usr/lib64/", "/usr/local/nvidia/lib64/"})
    paths.push_back(std::string(folder) + kName);
  return paths;
}

Result<std::unique_ptr<Nvml>> Nvml::open(std::span<const std::string> libraries) {
  auto library = std::make_unique<Library>();
  std::string why;
  for (size_t i = 0; i < libraries.size() && library->handle == nullptr; ++i) {
    library->handle = ::dlopen(libraries[i].c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library->handle == nullptr && why.empty()) {
      why = ::dlerror();  // NOLINT(concurrency-mt-unsafe): glibc's is of the thread
    }
  }
  if (library->handle == nullptr) return unavailable(why);
  if (const char* missing = library->resolve()) {
    return unavailable(std::string("libnvidia-ml.so.1 has no ") + missing +
                       ": a newer driver is needed");
  }
  TRAINYARD_TRY(library->find_devices());
  return std::unique_ptr<Nvml>(new Nvml(std::move(library)));
}

int Nvml::count() const { return static_cast<int>(library_->devices.size()); }

GpuReading Nvml::read(int gpu) const {
  const Library& nvml = *library_;
  const Device device = nvml.devices[static_cast<size_t>(gpu)];
  GpuReading reading;
  reading.lost = device == nullptr;
  if (reading.lost) return reading;
  const auto told = [&](auto function, auto... arguments) {
    const Return error = function == nullptr ? kNoFunction : function(device, arguments...);
    reading.lost = reading.lost || error == kGpuIsLost || error == kResetRequired;
    return error == kSuccess;
  };
  char text[kNameBytes] = {};
  if (told(nvml.name, text, kNameBytes)) reading.name = text;
  if (told(nvml.uuid, text, kNameBytes)) reading.uuid = text;
  if (Memory memory{}; told(nvml.memory, &memory)) {
    reading.memory_used_bytes = static_cast<int64_t>(memory.used);
    reading.memory_bytes = static_cast<int64_t>(memory.total);
  }
  if (Utilization rates{}; told(nvml.utilization, &rates)) reading.utilization = rates.gpu / 100.0;
  unsigned value = 0;
  if (told(nvml.temperature, kTemperatureOfGpu, &value)) reading.temperature_celsius = value;
  if (told(nvml.power, &value)) reading.power_watts = value / 1000.0;
  if (told(nvml.power_limit, &value)) reading.power_limit_watts = value / 1000.0;
  if (told(nvml.clock, kClockOfMultiprocessors, &value)) reading.clock_hertz = value * 1e6;
  unsigned long long bits = 0;
  if (told(nvml.slowdown, &bits)) {
    const bool by_power = (bits & kSlowedByPower) != 0;
    const bool by_heat =
        (bits & kSlowedByHeat) != 0 || ((bits & kSlowedByHardware) != 0 && !by_power);
    reading.slowdown = {by_heat, by_power};
  }
  if (told(nvml.ecc_errors, kCorrected, kSinceDriverLoad, &bits)) {
    reading.ecc_corrected = static_cast<int64_t>(bits);
  }
  if (told(nvml.ecc_errors, kUncorrected, kSinceDriverLoad, &bits)) {
    reading.ecc_uncorrected = static_cast<int64_t>(bits);
  }
  return reading;
}

std::optional<XidError> Nvml::wait_for_error(std::chrono::milliseconds timeout) {
  const Library& nvml = *library_;
  EventData event{};
  if (nvml.events == nullptr) {
    std::this_thread::sleep_for(timeout);
    return std::nullopt;
  }
  const auto begin = std::chrono::steady_clock::now();
  const Return error = nvml.wait_event(nvml.events, &event, static_cast<unsigned>(timeout.count()));
  const auto device = std::find(nvml.devices.begin(), nvml.devices.end(), event.device);
  if (error == kSuccess && event.type == kXidEvents && device != nvml.devices.end()) {
    return XidError{static_cast<int>(device - nvml.devices.begin()),
                    static_cast<int64_t>(event.data)};
  }
  // A call that fails at once must not turn whoever waits in a loop into a busy one.
  std::this_thread::sleep_until(begin + timeout);
  return std::nullopt;
}

}  // namespace trainyard::agent

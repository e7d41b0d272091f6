#include "agent/gpu_watch.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

namespace trainyard::agent {
namespace {

using Moment = std::chrono::steady_clock::time_point;
using metrics::Exposition;
using metrics::Family;
using metrics::Kind;

constexpr std::chrono::milliseconds kErrorWait{200};
constexpr std::chrono::seconds kReadInterval{1};
/// For a driver to open and answer; the agent goes on without one that takes longer.
constexpr std::chrono::seconds kStartTimeout{5};
/// For a thread in a driver that answers; another is left to the end of the process.
constexpr std::chrono::seconds kStopTimeout{2};
/// A GPU that reports without end fills no memory and no page.
constexpr size_t kMaxErrorsKept = 4096;
constexpr size_t kMaxXidSeries = 16;

constexpr Family kInfo{
    "trainyard_gpu_info", Kind::kGauge, "Always 1; names the GPU.", {"gpu", "name", "uuid"}};
constexpr Family kLost{"trainyard_gpu_lost",
                       Kind::kGauge,
                       "1 where the driver has lost the GPU; it needs a reset.",
                       {"gpu"}};
constexpr Family kReadingAge{
    "trainyard_gpu_reading_age_seconds", Kind::kGauge,
    "Age of what the other series of GPUs show; it grows while the driver does not answer."};
constexpr Family kUsed{
    "trainyard_gpu_memory_used_bytes", Kind::kGauge, "Memory of the GPU in use.", {"gpu"}};
constexpr Family kMemory{"trainyard_gpu_memory_bytes", Kind::kGauge, "Memory of the GPU.", {"gpu"}};
constexpr Family kUtilization{"trainyard_gpu_utilization_ratio",
                              Kind::kGauge,
                              "Share of the time in which any kernel ran, 0 to 1.",
                              {"gpu"}};
constexpr Family kTemperature{
    "trainyard_gpu_temperature_celsius", Kind::kGauge, "Temperature of the GPU.", {"gpu"}};
constexpr Family kPower{"trainyard_gpu_power_watts", Kind::kGauge, "Power drawn.", {"gpu"}};
constexpr Family kPowerLimit{
    "trainyard_gpu_power_limit_watts", Kind::kGauge, "Power that may be drawn.", {"gpu"}};
constexpr Family kClock{
    "trainyard_gpu_clock_hertz", Kind::kGauge, "Clock of the GPU's multiprocessors.", {"gpu"}};
constexpr Family kSlowed{"trainyard_gpu_slowed",
                         Kind::kGauge,
                         "1 while heat or a limit of power holds the clocks down.",
                         {"gpu", "reason"}};
constexpr Family kEcc{"trainyard_gpu_ecc_errors_total",
                      Kind::kCounter,
                      "Errors of the GPU's memory since its driver was loaded.",
                      {"gpu", "kind"}};
constexpr Family kXid{"trainyard_gpu_xid_errors_total",
                      Kind::kCounter,
                      "Errors that the driver reported since the agent's start, by Xid; of "
                      "those that have no name here, beyond 16, \"other\".",
                      {"gpu", "xid"}};
constexpr std::array kFamilies = {kInfo,        kLost,        kReadingAge, kUsed,       kMemory,
                                  kUtilization, kTemperature, kPower,      kPowerLimit, kClock,
                                  kSlowed,      kEcc,         kXid};

struct XidMeaning {
  int64_t xid;
  const char* words;
  bool hardware;
};

/// Those that end programs or tell of broken parts ("Xid Errors", NVIDIA GPU deployment and
/// management documentation, r560).
constexpr XidMeaning kMeanings[] = {
    {13, "a kernel accessed memory that it may not, or failed otherwise", false},
    {31, "a kernel accessed memory that is not mapped", false},
    {43, "the program's work was stopped after an error of its own", false},
    {45, "the program's work was stopped, usually because the program has ended", false},
    {48, "an error of memory that could not be corrected", true},
    {61, "an error of the GPU's internal controller", true},
    {62, "the GPU's internal controller has halted", true},
    {63, "a row of memory was remapped, or a page retired; effective after a reset", false},
    {64, "a row of memory could not be remapped", true},
    {74, "an error of a link to another GPU (NVLink)", true},
    {79, "the GPU has fallen off the bus", true},
    {92, "many corrected errors of memory", false},
    {94, "an error of memory that could not be corrected, within one program", true},
    {95, "an error of memory that could not be corrected, in all programs", true},
    {109, "a switch of contexts took too long", false},
    {119, "the GPU's system processor (GSP) does not answer", true},
    {120, "the GPU's system processor (GSP) has failed", true},
    {140, "errors of memory that were not recovered", true},
};

const XidMeaning* meaning_of(int64_t xid) {
  const auto* found = std::find_if(std::begin(kMeanings), std::end(kMeanings),
                                   [&](const XidMeaning& m) { return m.xid == xid; });
  return found == std::end(kMeanings) ? nullptr : found;
}

}  // namespace

struct GpuWatch::Shared {
  explicit Shared(std::vector<std::string> sought) : libraries(std::move(sought)) {}

  void watch() {
    auto opened = Nvml::open(libraries);
    if (!opened) {
      const std::lock_guard lock(mutex);
      error = opened.error();
      stopped = true;
      changed.notify_all();
      return;
    }
    nvml = *std::move(opened);
    Moment read_at = Moment::clock::now();
    while (true) {
      if (Moment::clock::now() >= read_at) {
        read();
        read_at = Moment::clock::now() + kReadInterval;
      }
      take_errors(kErrorWait);
      const std::lock_guard lock(mutex);
      if (stops) break;
    }
    nvml.reset();
    const std::lock_guard lock(mutex);
    stopped = true;
    changed.notify_all();
  }

  void take_errors(std::chrono::milliseconds timeout) {
    while (const auto error_of_gpu = nvml->wait_for_error(timeout)) {
      const std::lock_guard lock(mutex);
      add(*error_of_gpu);
      if (stops) return;
    }
  }

  void read() {
    std::vector<GpuReading> fresh;
    for (int gpu = 0; gpu < nvml->count(); ++gpu) {
      fresh.push_back(nvml->read(gpu));
      take_errors(std::chrono::milliseconds(0));  // a GPU that fails answers slowly
    }
    const std::lock_guard lock(mutex);
    for (size_t gpu = 0; gpu < fresh.size() && gpu < readings.size(); ++gpu) {
      // Names stay known of a GPU that is lost.
      if (fresh[gpu].name.empty()) fresh[gpu].name = readings[gpu].name;
      if (fresh[gpu].uuid.empty()) fresh[gpu].uuid = readings[gpu].uuid;
    }
    readings = std::move(fresh);
    taken_at = Moment::clock::now();
    changed.notify_all();
  }

  void add(const XidError& told) {
    errors.push_back(told);
    if (errors.size() > kMaxErrorsKept) {
      errors.pop_front();
      ++forgotten;
    }
    const bool known = meaning_of(told.xid) != nullptr || counts.contains({told.gpu, told.xid}) ||
                       counts.size() < kMaxXidSeries;
    counts[{told.gpu, known ? told.xid : -1}] += 1;
  }

  const std::vector<std::string> libraries;
  std::unique_ptr<Nvml> nvml;  ///< of the thread alone
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<Error> error;        ///< of the opening
  std::vector<GpuReading> readings;  ///< by GPU; none before the first
  Moment taken_at = Moment::clock::now();
  std::deque<XidError> errors;                        ///< the newest
  size_t forgotten = 0;                               ///< older ones
  std::map<std::pair<int, int64_t>, int64_t> counts;  ///< by GPU and Xid; -1: any other
  bool stops = false, stopped = false;
};

GpuWatch::GpuWatch(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}

Result<std::unique_ptr<GpuWatch>> GpuWatch::start(std::span<const std::string> libraries) {
  auto shared =
      std::make_shared<Shared>(std::vector<std::string>(libraries.begin(), libraries.end()));
  std::thread([shared] { shared->watch(); }).detach();
  {
    std::unique_lock lock(shared->mutex);
    shared->changed.wait_for(lock, kStartTimeout,
                             [&] { return shared->error || !shared->readings.empty(); });
    if (shared->error) return *shared->error;
  }
  return std::unique_ptr<GpuWatch>(new GpuWatch(std::move(shared)));
}

GpuWatch::~GpuWatch() {
  std::unique_lock lock(shared_->mutex);
  shared_->stops = true;
  shared_->changed.wait_for(lock, kStopTimeout, [&] { return shared_->stopped; });
}

int GpuWatch::count() const {
  const std::lock_guard lock(shared_->mutex);
  return static_cast<int>(shared_->readings.size());
}

size_t GpuWatch::errors() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->forgotten + shared_->errors.size();
}

GpuFailure GpuWatch::failure(size_t known, int gpu) const {
  const std::lock_guard lock(shared_->mutex);
  const auto& errors = shared_->errors;
  const auto name_of = [&](size_t index) {
    const GpuReading& reading = shared_->readings.at(index);
    return "GPU " + std::to_string(index) + " (" + reading.name + ", " + reading.uuid + ")";
  };
  // The first is the cause, unless a later one says that hardware is.
  const XidError* cause = nullptr;
  const auto hardware = [](const XidError& error) {
    const XidMeaning* const meaning = meaning_of(error.xid);
    return meaning != nullptr && meaning->hardware;
  };
  for (size_t i = known - std::min(known, shared_->forgotten); i < errors.size(); ++i) {
    if (gpu >= 0 && errors[i].gpu != gpu) continue;
    if (cause == nullptr || (hardware(errors[i]) && !hardware(*cause))) cause = &errors[i];
  }
  if (cause == nullptr || !hardware(*cause)) {
    for (size_t i = 0; i < shared_->readings.size(); ++i) {
      if (!shared_->readings[i].lost || (gpu >= 0 && i != static_cast<size_t>(gpu))) continue;
      return {name_of(i) + " is lost: its driver gives no access to it any more", true};
    }
  }
  if (cause == nullptr) return {};
  const XidMeaning* const meaning = meaning_of(cause->xid);
  return {name_of(static_cast<size_t>(cause->gpu)) + " reported Xid " + std::to_string(cause->xid) +
              (meaning == nullptr ? std::string() : std::string(": ") + meaning->words),
          hardware(*cause)};
}

void GpuWatch::add_metrics(Exposition& out) const {
  const std::lock_guard lock(shared_->mutex);
  const auto seconds = std::chrono::duration<double>(Moment::clock::now() - shared_->taken_at);
  out.add(kReadingAge, {}, seconds.count());
  for (size_t i = 0; i < shared_->readings.size(); ++i) {
    const GpuReading& reading = shared_->readings[i];
    const std::string gpu = std::to_string(i);
    out.add(kInfo, {gpu, reading.name, reading.uuid}, 1);
    out.add(kLost, {gpu}, reading.lost ? 1 : 0);
    const auto show = [&](const Family& family, const auto& value) {
      if (value) out.add(family, {gpu}, static_cast<double>(*value));
    };
    show(kUsed, reading.memory_used_bytes);
    show(kMemory, reading.memory_bytes);
    show(kUtilization, reading.utilization);
    show(kTemperature, reading.temperature_celsius);
    show(kPower, reading.power_watts);
    show(kPowerLimit, reading.power_limit_watts);
    show(kClock, reading.clock_hertz);
    if (reading.slowdown) {
      out.add(kSlowed, {gpu, "heat"}, reading.slowdown->thermal ? 1 : 0);
      out.add(kSlowed, {gpu, "power"}, reading.slowdown->power ? 1 : 0);
    }
    if (reading.ecc_corrected) {
      out.add(kEcc, {gpu, "corrected"}, static_cast<double>(*reading.ecc_corrected));
    }
    if (reading.ecc_uncorrected) {
      out.add(kEcc, {gpu, "uncorrected"}, static_cast<double>(*reading.ecc_uncorrected));
    }
  }
  out.declare(kXid);
  for (const auto& [which, count] : shared_->counts) {
    out.add(
        kXid,
        {std::to_string(which.first), which.second < 0 ? "other" : std::to_string(which.second)},
        static_cast<double>(count));
  }
}

std::span<const Family> gpu_families() { return kFamilies; }

}  // namespace trainyard::agent

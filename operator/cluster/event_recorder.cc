#include "operator/cluster/event_recorder.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/text/rfc3339.h"
#include "control/status_edit.h"

namespace trainyard::cluster {
namespace {

using nlohmann::json;

constexpr char kController[] = "trainyard-operator";
/// The server refuses an event with a longer note; what a webhook says may be longer.
constexpr int64_t kMaxNoteBytes = 1024;
/// Remembered at once, of series and of jobs; beyond it the oldest are forgotten.
constexpr size_t kMemory = 4096;

template <class Map, class Age>
void forget_oldest(Map& map, Age age) {
  while (map.size() > kMemory) {
    map.erase(std::min_element(map.begin(), map.end(), [&](const auto& a, const auto& b) {
      return age(a.second) < age(b.second);
    }));
  }
}

}  // namespace

EventRecorder::EventRecorder(const kube::Client& client, const Clock& clock, Logger& logger,
                             std::string instance)
    : client_(client), clock_(clock), logger_(logger), instance_(std::move(instance)) {}

void EventRecorder::record(const api::ObjectMeta& job, const control::Event& event) {
  if (!is_allowed(job.uid, clock_.mono())) return;
  const Key key = job.uid + "\n" + event.reason + "\n" + event.message;
  if (!continue_series(job, key)) begin_series(job, event, key);
}

bool EventRecorder::is_allowed(const std::string& job_uid, MonoTime now) {
  const std::lock_guard lock(mutex_);
  const auto [entry, fresh] = allowances_.try_emplace(job_uid, Allowance{kBurst, now});
  Allowance& allowance = entry->second;
  const std::chrono::duration<double> elapsed = now - allowance.at;
  allowance.left =
      std::min<double>(kBurst, allowance.left + elapsed / std::chrono::duration<double>(kRefill));
  allowance.at = now;
  const bool allowed = allowance.left >= 1;
  if (allowed) allowance.left -= 1;
  if (fresh) forget_oldest(allowances_, [](const Allowance& one) { return one.at; });
  return allowed;
}

bool EventRecorder::continue_series(const api::ObjectMeta& job, const Key& key) {
  Series series;
  {
    const std::lock_guard lock(mutex_);
    const auto found = series_.find(key);
    if (found == series_.end()) return false;
    if (clock_.mono() - found->second.last > kSeriesTime) return false;
    ++found->second.count;
    found->second.last = clock_.mono();
    series = found->second;
  }
  const json change = {
      {"series",
       {{"count", series.count}, {"lastObservedTime", text::format_micro_time(clock_.now())}}}};
  return client_.merge_patch(kube::kEvents, {job.namespace_name, series.event_name}, change, {})
      .has_value();
}

void EventRecorder::begin_series(const api::ObjectMeta& job, const control::Event& event,
                                 const Key& key) {
  Series series;
  series.last = clock_.mono();
  {
    const std::lock_guard lock(mutex_);
    // Unique like client-go's: the object's name and the time in hexadecimal digits.
    series.event_name =
        fmt::format("{}.{:x}", job.name, clock_.now().time_since_epoch().count() + ++names_);
    series_[key] = series;
    forget_oldest(series_, [](const Series& one) { return one.last; });
  }
  const json object = {
      {"metadata", {{"name", series.event_name}, {"namespace", job.namespace_name}}},
      {"eventTime", text::format_micro_time(clock_.now())},
      {"reportingController", kController},
      {"reportingInstance", instance_},
      {"action", "Reconcile"},
      {"type", event.type == control::EventType::kWarning ? "Warning" : "Normal"},
      {"reason", event.reason},
      {"note", control::bounded_text(event.message, kMaxNoteBytes)},
      {"regarding",
       {{"apiVersion", api::kApiVersion},
        {"kind", api::kKind},
        {"namespace", job.namespace_name},
        {"name", job.name},
        {"uid", job.uid}}}};
  const auto made = client_.create(kube::kEvents, job.namespace_name, object);
  if (made) return;
  logger_.warning("event not written", {{"namespace", job.namespace_name},
                                        {"job", job.name},
                                        {"reason", event.reason},
                                        {"error", made.error().to_error("event").message}});
}

}  // namespace trainyard::cluster

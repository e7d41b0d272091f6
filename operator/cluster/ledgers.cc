#include "operator/cluster/ledgers.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "common/api/encode.h"
#include "common/text/rfc3339.h"
#include "control/status_edit.h"
#include "operator/cache/meta.h"
#include "operator/cluster/members.h"
#include "operator/cluster/refusals.h"

namespace trainyard::cluster {
namespace {

using nlohmann::json;

bool has_ended(const api::TrainingJobStatus& status) {
  return control::is_true(status, api::ConditionType::kComplete) ||
         control::is_true(status, api::ConditionType::kFailed);
}

/// "train.<uid>": what a ConfigMap takes as a key, and a name that is used again is another one.
std::string key_of(const control::JobKey& key, const std::string& uid) {
  return key.name + "." + uid;
}

/// What an error is about: the key of the reconcile may be that of no job.
std::string place_of(const control::JobKey& key) {
  return std::string("ConfigMap ") + Ledgers::kName + " of namespace " + key.namespace_name +
         " for job " + key.name;
}

/// No news: the failure has been told.
Error too_early(const control::JobKey& key, const Error& failure) {
  return {ErrorCode::kConflict,
          place_of(key) + ": too early for another try after: " + failure.message};
}

json entry_of(const api::ObjectMeta& job, const api::TrainingJobStatus& status, Time gone_at) {
  const json all = json::parse(api::encode_status(status));
  const bool ended = has_ended(status) && status.completion_time;
  json entry = {{"job", job.name},
                {"uid", job.uid},
                {"end", ended ? all["phase"] : json("Deleted")},
                {"endTime", ended ? all["completionTime"] : json(text::format_time(gone_at))},
                {"generation", status.membership.generation},
                {"restarts", status.restarts.total},
                {"goodput", all["goodput"]}};
  if (status.start_time) entry["startTime"] = all["startTime"];
  if (status.progress) entry["step"] = status.progress->step;
  return entry;
}

/// When the job of an entry ended; the earliest time for what cannot be read.
Time end_of(const json& text) {
  const json entry = text.is_string() ? json::parse(text.get<std::string>(), nullptr, false)
                                      : json(json::value_t::discarded);
  const json& time = at(entry, "endTime");
  if (!time.is_string()) return Time::min();
  return text::parse_time(time.get<std::string>()).value_or(Time::min());
}

/// What to change in `data` so that it has the entry and not more than kKept: the newest ends.
/// Empty: nothing.
json change_for(const json& data, const std::string& key, const std::string& text) {
  std::vector<std::pair<Time, std::string>> ends = {{end_of(text), key}};
  for (const auto& [other, value] : data.items())
    ends.emplace_back(end_of(value), other);
  std::sort(ends.begin(), ends.end());
  json change = {{key, text}};
  for (size_t i = 0; i + Ledgers::kKept < ends.size(); ++i) {
    if (ends[i].second == key) return {};
    change[ends[i].second] = nullptr;
  }
  return change;
}

}  // namespace

/// One of `most` writers, until its end.
class Ledgers::Turn {
 public:
  Turn(Writers& writers, int most) : writers_(writers) {
    std::unique_lock lock(writers_.mutex);
    const auto is_free = [&] { return writers_.count < most; };
    is_given_ =
        is_free() || writers_.done.wait_until(lock, writers_.newest + kLongestWait, is_free);
    if (!is_given_) return;
    ++writers_.count;
    writers_.newest = std::chrono::steady_clock::now();
  }
  ~Turn() {
    if (!is_given_) return;
    {
      const std::lock_guard lock(writers_.mutex);
      --writers_.count;
    }
    writers_.done.notify_one();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  bool is_given() const { return is_given_; }

 private:
  Writers& writers_;
  bool is_given_ = false;
};

Ledgers::Ledgers(const kube::Client& client, const Clock& clock, Logger& logger)
    : client_(client), clock_(clock), logger_(logger) {}

Status Ledgers::keep(const api::ObjectMeta& job, const api::TrainingJobStatus& status) {
  if (!has_ended(status) || !status.goodput) return {};
  const control::JobKey key{job.namespace_name, job.name};
  Tries tries{.since = clock_.mono()};
  {
    const std::lock_guard lock(mutex_);
    if (written_.contains(job.uid)) return {};
    const auto failed = failing_.find(job.uid);
    if (failed != failing_.end()) tries = failed->second;
  }
  if (clock_.mono() < tries.next) return too_early(key, tries.failure);
  const Entry entry{key, job.uid, entry_of(job, status, {}), {}};
  Status written = try_to_write(entry, tries);
  const std::lock_guard lock(mutex_);
  if (!written) {
    if (!is_late(tries.since)) {
      failing_[job.uid] = tries;
      return written;
    }
    give_up(entry, "not written within 10 min: " + written.error().message);
  }
  failing_.erase(job.uid);
  written_.insert(job.uid);
  return {};
}

bool Ledgers::gone(const api::ObjectMeta& job, const api::TrainingJobStatus& status) {
  const std::lock_guard lock(mutex_);
  failing_.erase(job.uid);
  if (written_.erase(job.uid) > 0 || !status.goodput) return false;
  drop_late();
  waiting_.push_back({{job.namespace_name, job.name},
                      job.uid,
                      entry_of(job, status, clock_.now()),
                      {.since = clock_.mono()}});
  if (waiting_.size() > kMaxWaiting) drop_oldest("too many wait: ");
  return true;
}

void Ledgers::forget(const std::string& job_uid) {
  const std::lock_guard lock(mutex_);
  written_.erase(job_uid);
  failing_.erase(job_uid);
}

/// Under mutex_. Where this process does not lead, it has not tried, and the leader has long
/// written these.
void Ledgers::drop_oldest(const char* why) {
  const Entry& oldest = waiting_.front();
  const std::string& failure = oldest.tries.failure.message;
  if (!failure.empty()) give_up(oldest, why + failure);
  waiting_.pop_front();
}

/// Under mutex_.
void Ledgers::drop_late() {
  while (!waiting_.empty() && is_late(waiting_.front().tries.since))
    drop_oldest("not written within 10 min: ");
}

bool Ledgers::waits() const {
  const std::lock_guard lock(mutex_);
  return !waiting_.empty();
}

/// The one whose next try is due longest, the oldest of those that have not been tried.
std::optional<Ledgers::Entry> Ledgers::next_gone() {
  const std::lock_guard lock(mutex_);
  drop_late();
  const auto next =
      std::min_element(waiting_.begin(), waiting_.end(),
                       [](const Entry& a, const Entry& b) { return a.tries.next < b.tries.next; });
  return next == waiting_.end() ? std::nullopt : std::optional(*next);
}

Status Ledgers::keep_gone() {
  for (int written_now = 0; written_now < kAtOneLook; ++written_now) {
    std::optional<Entry> entry = next_gone();
    if (!entry) return {};
    if (clock_.mono() < entry->tries.next) return too_early(entry->key, entry->tries.failure);
    Status written = try_to_write(*entry, entry->tries);
    const std::lock_guard lock(mutex_);
    if (!written) {
      for (Entry& waiting : waiting_)
        if (waiting.uid == entry->uid) waiting.tries = entry->tries;
      return written;
    }
    std::erase_if(waiting_, [&](const Entry& waiting) { return waiting.uid == entry->uid; });
  }
  return {};
}

std::shared_ptr<Ledgers::Namespace> Ledgers::namespace_of(const std::string& name) {
  const std::lock_guard lock(mutex_);
  const auto found = namespaces_.find(name);
  if (found != namespaces_.end()) return found->second;
  if (namespaces_.size() >= kMaxNamespaces) {
    // Nobody writes in those.
    std::erase_if(namespaces_, [](const auto& one) { return one.second.use_count() == 1; });
  }
  return namespaces_[name] = std::make_shared<Namespace>();
}

/// A worker that a server keeps waiting has as much time for other jobs.
Status Ledgers::try_to_write(const Entry& entry, Tries& tries) {
  const MonoTime began = clock_.mono();
  Status written = write(entry);
  if (written) return {};
  const MonoTime now = clock_.mono();
  tries = {tries.since, now + (now - began), written.error()};
  return written;
}

Status Ledgers::write(const Entry& entry) {
  const std::shared_ptr<Namespace> ns = namespace_of(entry.key.namespace_name);
  const Turn turn(ns->writers, 1);
  if (!turn.is_given()) {
    return Error{ErrorCode::kUnavailable, place_of(entry.key) + ": another entry is being written"};
  }
  std::set<std::string>& stored = ns->stored;
  const std::string key = key_of(entry.key, entry.uid);
  if (stored.contains(key)) return {};
  const Turn writer(writers_, kWriters);
  if (!writer.is_given()) {
    return Error{ErrorCode::kUnavailable,
                 place_of(entry.key) + ": entries of other namespaces are being written"};
  }
  const kube::ObjectName name{entry.key.namespace_name, kName};
  const auto found = client_.get(kube::kConfigMaps, name);
  if (!found) {
    if (found.error().reason == kube::Reason::kNotFound) return create(entry);
    return judge(found.error(), "get", entry);
  }
  const auto meta = cache::read_meta(*found);
  if (!meta || text_at(at(at(*found, "metadata"), "labels"), kLabel) != "true") {
    give_up(entry, "a ConfigMap of that name exists without the label trainyard.dev/ledgers=true");
    return {};
  }
  const json& data = at(*found, "data");
  stored.clear();
  for (const auto& [other, value] : data.items())
    stored.insert(other);
  if (stored.contains(key)) return {};
  const json change = change_for(data, key, entry.text.dump());
  if (change.empty()) return {};
  const auto patched = client_.merge_patch(kube::kConfigMaps, name, {{"data", change}},
                                           {meta->uid, meta->resource_version});
  if (patched) return {};
  if (patched.error().reason == kube::Reason::kNotFound) {
    return Error{ErrorCode::kConflict, place_of(entry.key) + ": it has just been deleted"};
  }
  return judge(patched.error(), "patch", entry);
}

Status Ledgers::create(const Entry& entry) {
  const json object = {
      {"apiVersion", "v1"},
      {"kind", "ConfigMap"},
      {"metadata",
       {{"name", kName}, {"namespace", entry.key.namespace_name}, {"labels", {{kLabel, "true"}}}}},
      {"data", {{key_of(entry.key, entry.uid), entry.text.dump()}}}};
  const auto made = client_.create(kube::kConfigMaps, entry.key.namespace_name, object);
  if (made) return {};
  if (made.error().reason == kube::Reason::kAlreadyExists) {
    return Error{ErrorCode::kConflict, place_of(entry.key) + ": it has just been created"};
  }
  if (made.error().reason == kube::Reason::kNotFound) {
    give_up(entry, "the namespace is gone");
    return {};
  }
  return judge(made.error(), "create", entry);
}

/// What the server does not allow now is not worth holding up the end of a job.
Status Ledgers::judge(const kube::ApiError& error, std::string_view verb, const Entry& entry) {
  if (!refusal_of(error)) {
    return error.to_error(std::string(verb) + " " + place_of(entry.key));
  }
  give_up(entry, error.message);
  return {};
}

void Ledgers::give_up(const Entry& entry, const std::string& why) {
  logger_.warning("a job's ledger is not kept in ConfigMap trainyard-ledgers",
                  {{"namespace", entry.key.namespace_name},
                   {"job", entry.key.name},
                   {"uid", entry.uid},
                   {"error", why}});
}

}  // namespace trainyard::cluster

#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <mutex>
#include <string>

#include "common/api/training_job.h"
#include "common/base/clock.h"
#include "common/log/log.h"
#include "control/plan.h"
#include "operator/kube/client.h"

namespace trainyard::cluster {

/// Tells users what happened, as Event objects about a job. What is said again within kSeriesTime
/// counts up the event that said it first; of one job at most kBurst events at once, and then one
/// every kRefill (client-go's spam filter). An event that cannot be written is logged and dropped:
/// nothing depends on it. Thread-safe.
class EventRecorder {
 public:
  static constexpr std::chrono::minutes kSeriesTime{6};
  static constexpr int64_t kBurst = 25;
  static constexpr std::chrono::minutes kRefill{5};

  /// `instance` names this process. All outlive the recorder.
  EventRecorder(const kube::Client& client, const Clock& clock, Logger& logger,
                std::string instance);

  /// Blocks for one call to the server.
  void record(const api::ObjectMeta& job, const control::Event& event);

 private:
  struct Series {
    std::string event_name;
    int64_t count = 1;
    MonoTime last{};
  };
  struct Allowance {
    double left = 0;
    MonoTime at{};
  };
  using Key = std::string;

  bool is_allowed(const std::string& job_uid, MonoTime now);
  bool continue_series(const api::ObjectMeta& job, const Key& key);
  void begin_series(const api::ObjectMeta& job, const control::Event& event, const Key& key);

  const kube::Client& client_;
  const Clock& clock_;
  Logger& logger_;
  const std::string instance_;
  std::mutex mutex_;  ///< guards all below
  std::map<Key, Series> series_;
  std::map<std::string, Allowance> allowances_;  ///< by job UID
  int64_t names_ = 0;
};

}  // namespace trainyard::cluster

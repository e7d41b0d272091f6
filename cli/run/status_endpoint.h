#pragma once

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>

#include "cli/run/local_run.h"
#include "common/base/error.h"
#include "common/http/status_server.h"

namespace trainyard::cli {

/// In the run directory while a status server listens: its address, "127.0.0.1:43121".
inline constexpr char kMetricsAddressFile[] = "metrics-address";

/// Serves /metrics, /healthz and /readyz of a run. Listens before the run starts, so that an
/// address which cannot be had leaves nothing behind. One thread.
class StatusEndpoint {
 public:
  /// Until a run is attached there are no metrics and it is not ready. Errors: kInvalidConfig
  /// for an address that cannot be listened at.
  static Result<std::unique_ptr<StatusEndpoint>> listen(const std::string& address);
  /// Stops serving and removes the record.
  ~StatusEndpoint();
  StatusEndpoint(const StatusEndpoint&) = delete;
  StatusEndpoint& operator=(const StatusEndpoint&) = delete;

  /// From now on `run`, which outlives this, is shown; the address is recorded in its directory.
  /// Errors: kIo when it cannot be.
  Status attach(LocalRun& run);

  const std::string& address() const { return server_->address(); }

 private:
  StatusEndpoint() = default;
  std::string metrics(const http::ServerCounters& counters) const;
  http::Health ready() const;

  std::atomic<LocalRun*> run_{nullptr};
  std::filesystem::path record_;
  std::unique_ptr<http::StatusServer> server_;
};

}  // namespace trainyard::cli

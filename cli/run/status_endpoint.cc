#include "cli/run/status_endpoint.h"

#include <system_error>

#include "common/io/file.h"

namespace trainyard::cli {

Result<std::unique_ptr<StatusEndpoint>> StatusEndpoint::listen(const std::string& address) {
  std::unique_ptr<StatusEndpoint> endpoint(new StatusEndpoint());
  StatusEndpoint* const self = endpoint.get();
  auto server = http::StatusServer::start(
      {.address = address,
       .pages = http::status_pages(
           [self](const http::ServerCounters& counters) { return self->metrics(counters); },
           [self] { return self->ready(); })});
  // Whatever is wrong with it, the flag is the one to mend.
  if (!server) {
    return Error{ErrorCode::kInvalidConfig, "--metrics-address: " + server.error().message};
  }
  endpoint->server_ = *std::move(server);
  return endpoint;
}

StatusEndpoint::~StatusEndpoint() {
  server_.reset();
  std::error_code ignored;
  if (!record_.empty()) std::filesystem::remove(record_, ignored);
}

Status StatusEndpoint::attach(LocalRun& run) {
  run_.store(&run, std::memory_order_release);
  const auto record = std::filesystem::path(run.header().run_dir) / kMetricsAddressFile;
  TRAINYARD_TRY(write_file_atomic(record, address() + "\n"));
  record_ = record;
  return {};
}

std::string StatusEndpoint::metrics(const http::ServerCounters& counters) const {
  LocalRun* const run = run_.load(std::memory_order_acquire);
  return run == nullptr ? "" : run->metrics_text(counters);
}

http::Health StatusEndpoint::ready() const {
  const LocalRun* const run = run_.load(std::memory_order_acquire);
  return run == nullptr ? http::Health{false, "starting"} : run->readiness();
}

}  // namespace trainyard::cli

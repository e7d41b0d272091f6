#include "control/coordinator/grpc_log.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <grpc/support/log.h>
#include <mutex>
#include <string>

#include "common/log/text.h"

namespace trainyard::control {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kTextBytesMax = 300;
/// Errors of gRPC come one at a time where nobody provokes them.
constexpr int kLinesPerPeriod = 5;
constexpr std::chrono::seconds kPeriod{1};

/// gRPC calls back without a context, from any of its threads, until the process ends.
struct Sink {
  std::mutex mutex;
  Logger* logger = nullptr;
  Clock::time_point period_began;
  int64_t lines = 0;  ///< of this period, those left out too
};

Sink& sink() {
  static Sink instance;
  return instance;
}

void log_one(gpr_log_func_args* args) {
  Sink& to = sink();
  const std::lock_guard lock(to.mutex);
  if (to.logger == nullptr) return;
  const auto now = Clock::now();
  int64_t left_out = 0;
  if (now - to.period_began >= kPeriod) {
    left_out = std::max<int64_t>(0, to.lines - kLinesPerPeriod);
    to.period_began = now;
    to.lines = 0;
  }
  if (++to.lines > kLinesPerPeriod) return;
  const std::string text = printable_text(args->message, kTextBytesMax);
  if (left_out > 0)
    to.logger->warning("gRPC wrote more lines than are logged", {{"lines", left_out}});
  to.logger->log(args->severity == GPR_LOG_SEVERITY_ERROR ? LogLevel::kWarning : LogLevel::kDebug,
                 "gRPC", {{"text", text}});
}

}  // namespace

GrpcLog::GrpcLog(Logger& logger) {
  const std::lock_guard lock(sink().mutex);
  sink().logger = &logger;
  gpr_set_log_function(log_one);
}

GrpcLog::~GrpcLog() {
  const std::lock_guard lock(sink().mutex);
  sink().logger = nullptr;
}

}  // namespace trainyard::control

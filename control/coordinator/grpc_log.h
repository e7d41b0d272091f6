#pragma once

#include "common/log/log.h"

namespace trainyard::control {

/// While it lives, what gRPC says goes to `logger`, which escapes it: each text cut, and only so
/// many lines a second, for strangers on a port can make gRPC repeat what they send. gRPC has one
/// log for the process, so one of these at a time. `logger` outlives it.
class GrpcLog {
 public:
  explicit GrpcLog(Logger& logger);
  ~GrpcLog();
  GrpcLog(const GrpcLog&) = delete;
  GrpcLog& operator=(const GrpcLog&) = delete;
};

}  // namespace trainyard::control

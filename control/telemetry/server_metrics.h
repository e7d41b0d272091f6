#pragma once

#include <span>

#include "common/http/status_server.h"
#include "common/metrics/exposition.h"

/// The series about a status server itself, the same in every binary.
namespace trainyard::control {

std::span<const metrics::Family> server_families();

void add_server_metrics(metrics::Exposition& out, const http::ServerCounters& counters);

}  // namespace trainyard::control

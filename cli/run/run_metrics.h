#pragma once

#include <span>
#include <string>

#include "cli/run/snapshot.h"
#include "common/base/time.h"
#include "common/http/status_server.h"
#include "common/metrics/exposition.h"

/// The series of `trainyard run`: of the job, of all its ranks, of the status server. Pure.
/// docs/reference/metrics.md lists them.
namespace trainyard::cli {

/// The families beside those of the job, its ranks and the status server.
std::span<const metrics::Family> run_families();

/// The body of /metrics at `now`. All series are there from the start, as zeros, those of the ranks
/// that the manifest names included.
std::string run_metrics_text(const RunFacts& facts, const http::ServerCounters& server, Time now);

/// Ready: the job trains (or evaluates, or writes a checkpoint), all its ranks having met.
http::Health run_readiness(const RunFacts& facts);

}  // namespace trainyard::cli

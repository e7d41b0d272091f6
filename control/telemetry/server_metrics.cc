#include "control/telemetry/server_metrics.h"

#include <array>
#include <string>

namespace trainyard::control {
namespace {

using metrics::Family;
using metrics::Kind;

constexpr Family kAnswers{"trainyard_http_responses_total",
                          Kind::kCounter,
                          "Answers of the status server by HTTP status.",
                          {"code"}};
constexpr Family kClosed{"trainyard_http_closed_connections_total",
                         Kind::kCounter,
                         "Connections that the status server closed unanswered: out of time, or to "
                         "make room for newer ones.",
                         {"reason"}};
constexpr std::array kFamilies = {kAnswers, kClosed};

}  // namespace

std::span<const Family> server_families() { return kFamilies; }

void add_server_metrics(metrics::Exposition& out, const http::ServerCounters& counters) {
  for (size_t i = 0; i < http::kStatuses.size(); ++i) {
    out.add(kAnswers, {std::to_string(http::kStatuses[i])},
            static_cast<double>(counters.answers[i]));
  }
  out.add(kClosed, {"timeout"}, static_cast<double>(counters.timed_out));
  out.add(kClosed, {"evicted"}, static_cast<double>(counters.evicted));
}

}  // namespace trainyard::control

#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <utility>

#include <gtest/gtest.h>

#include "operator/kube/http_transport.h"
#include "tests/support/loopback_server.h"
#include "tests/support/manual_clock.h"
#include "tests/support/temporary_directory.h"

namespace trainyard::kube {

/// Far more than any step takes; what is expected to run out is given less.
inline const Patience kPatient{
    .limit = std::chrono::seconds(60), .idle = std::chrono::seconds(60), .stop = {}};

/// Answers every request of a connection.
inline testing_support::LoopbackServer::Handler each(
    std::function<void(testing_support::LoopbackConnection&,
                       const testing_support::ReceivedRequest&)>
        one) {
  return [one = std::move(one)](testing_support::LoopbackConnection& connection) {
    while (const auto request = connection.read_request())
      one(connection, *request);
  };
}

class HttpTransportTest : public testing::Test {
 protected:
  std::unique_ptr<Transport> transport(const ServerConfig& config, const HttpLimits& limits = {}) {
    auto made = make_http_transport(config, clock_, "trainyard-test/1", limits);
    EXPECT_TRUE(made.has_value()) << made.error().message;
    return *std::move(made);
  }
  std::unique_ptr<Transport> plain(const testing_support::LoopbackServer& server,
                                   const HttpLimits& limits = {}) {
    return transport({.server = server.url()}, limits);
  }

  testing_support::ManualClock clock_;
  testing_support::TemporaryDirectory directory_;
};

}  // namespace trainyard::kube

#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/fault.h"
#include "tests/support/loopback_server.h"

namespace trainyard::testing_support {

/// A request that was held, and what the server has said to it in the end.
struct LateRequest {
  ProxiedRequest request;
  int status = 0;  ///< HTTP; 0: no answer
};

/// Stands between a client and an API server and does to their talk what a script says. It ends the
/// client's TLS with a certificate of its own authority and opens TLS of its own to the server;
/// requests and answers pass as they are, the client's token among them. One connection to the
/// server for each of the client's. Thread-safe.
class FaultProxy {
 public:
  struct Options {
    int server_port = 0;                     ///< of the API server, on 127.0.0.1
    std::filesystem::path server_authority;  ///< PEM: whom to trust there
  };

  explicit FaultProxy(const Options& options);
  /// Ends all connections.
  ~FaultProxy();

  /// "https://127.0.0.1:PORT"
  std::string url() const;
  /// Whom clients must trust, PEM.
  const std::string& authority() const;

  /// From now on; numbers begin anew. Without one, everything passes.
  void script(FaultScript script);
  /// Kills the client (and may start it again), for the faults that do. Called from a connection's
  /// thread.
  void on_crash(std::function<void()> crash);

  /// How many requests are held (Fault::Kind::kHold).
  int64_t held() const;
  /// Sends what is held to the server, over connections of its own, and waits for the answers.
  std::vector<LateRequest> release();

  /// Connections are met like this from now on, and those that are open end.
  void go_down(Greeting greeting);
  /// They are served again.
  void come_up();

  /// All since the script was set, in their order.
  std::vector<ProxiedRequest> requests() const;
  /// How many of them met a fault, as far as it could be done to them.
  int64_t faults() const;
  /// Connections that were not served since go_down().
  int64_t turned_away() const;

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace trainyard::testing_support

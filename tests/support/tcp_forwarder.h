#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>

#include "common/base/unique_fd.h"

namespace trainyard::testing_support {

/// A way to a port of 127.0.0.1 that can be cut: bytes of both directions go through it as they
/// come. Ended with all its connections on destruction.
class TcpForwarder {
 public:
  /// Listens on a free port of 127.0.0.1 and forwards to `port`.
  explicit TcpForwarder(uint16_t port);
  ~TcpForwarder();
  TcpForwarder(const TcpForwarder&) = delete;
  TcpForwarder& operator=(const TcpForwarder&) = delete;

  uint16_t port() const { return port_; }
  /// From now on nothing comes through, and nobody is told so: connections stay open, new ones are
  /// taken, as by a network that loses packets.
  void cut() { cut_ = true; }
  /// What was kept back goes on.
  void mend() { cut_ = false; }

 private:
  void accept_all(const std::stop_token& stop);
  void forward(const std::stop_token& stop, UniqueFd client);

  const uint16_t target_;
  uint16_t port_ = 0;
  std::atomic<bool> cut_ = false;
  UniqueFd listener_;
  std::mutex mutex_;
  std::list<std::jthread> connections_;  ///< guarded by mutex_
  std::jthread accepting_;
};

}  // namespace trainyard::testing_support

#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "control/coordinator/control_transport.h"

namespace trainyard::control {

/// How an agent in a cluster knows its coordinator, and is known by it. Both files are read anew
/// for each stream: others replace them.
struct ChannelSecurity {
  std::filesystem::path authorities;  ///< PEM of those who may vouch for the coordinator
  std::filesystem::path token;        ///< shown as a bearer token
  /// After so long without a word the coordinator is asked whether it is there; it has half of that
  /// for its answer. The coordinator takes it for an attack below five seconds.
  std::chrono::milliseconds keepalive{10'000};
};

/// The agent's end of the control stream over gRPC's callback interface. To be used from one
/// thread; gRPC's own only queue events.
class GrpcChannel final : public ControlChannel {
 public:
  /// `address` as gRPC names it: "unix:/path", "host:port". Without `security` nothing is encrypted
  /// and nobody asked who he is: for Unix sockets. With it the coordinator must have a certificate
  /// for the host of `address`.
  explicit GrpcChannel(std::string address, std::optional<ChannelSecurity> security = {});
  /// Cancels an open stream and waits for its end, which comes at once (at most ten seconds).
  ~GrpcChannel() override;

  void open() override;
  std::vector<ChannelEvent> take() override;
  int wake_fd() const override;
  Status send(const coordination::FromAgent& message) override;
  int64_t unsent() const override;
  void finish(Duration timeout) override;

 private:
  class Stream;
  struct Shared;
  /// Ends and destroys the stream, if there is one, in the calling thread.
  void retire();

  const std::string address_;
  const std::optional<ChannelSecurity> security_;
  std::shared_ptr<Shared> shared_;  ///< shared with a stream that outlives its cancellation
  std::unique_ptr<Stream> stream_;
};

}  // namespace trainyard::control

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "control/coordinator/control_transport.h"

namespace trainyard::control {

/// The agent's end of the control stream over gRPC's callback interface. To be used from one
/// thread; gRPC's own only queue events.
class GrpcChannel final : public ControlChannel {
 public:
  /// `address` as gRPC names it: "unix:/path", "host:port".
  explicit GrpcChannel(std::string address);
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

  std::string address_;
  std::shared_ptr<Shared> shared_;  ///< shared with a stream that outlives its cancellation
  std::unique_ptr<Stream> stream_;
};

}  // namespace trainyard::control

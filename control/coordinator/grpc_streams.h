#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "control/coordinator/control_transport.h"

namespace grpc {
class Service;
}

namespace trainyard::control {

/// The streams that agents have opened with the servers of one transport, over gRPC's callback
/// interface. Reading of a stream pauses while kMaxQueuedMessages or kMaxUntakenBytes of its
/// messages wait to be taken, and ends when it is closed; one whose agent does not receive what was
/// sent to it before is cut by a take() seconds later. Thread-safe.
class GrpcStreams {
 public:
  /// What somebody else does with the connections under the streams. Called by gRPC's threads.
  struct Watch {
    /// A stream has come over the connection that gRPC knows as `peer`. Returns the address of the
    /// other side; nothing: the stream is refused.
    std::function<std::optional<std::string>(ConnectionId stream, const std::string& peer)> opened;
    /// It has ended; called once where `opened` returned an address.
    std::function<void(ConnectionId stream)> closed;
  };

  GrpcStreams();
  explicit GrpcStreams(Watch watch);
  /// No server that serves it may be running any more.
  ~GrpcStreams();

  /// What a server is to serve; several servers, each with its own, share the streams. Not to
  /// outlive this.
  std::unique_ptr<grpc::Service> make_service();

  // As ControlTransport.
  std::vector<ServerEvent> take(Duration timeout);
  void interrupt();
  Status send(ConnectionId connection, const coordination::ToAgent& message,
              std::shared_ptr<const std::string> tail = nullptr);
  void close(ConnectionId connection);

  /// Streams that come from now on are refused with UNAVAILABLE.
  void refuse_new();
  /// Streams that come from now on are let in, as at the beginning.
  void accept_new();
  /// Closes all; whether all have ended within the time.
  bool close_all(Duration timeout);

 private:
  class Registry;
  class Connection;
  class Service;
  std::unique_ptr<Registry> registry_;
};

}  // namespace trainyard::control

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/error.h"
#include "common/base/time.h"

namespace trainyard::coordination {
class FromAgent;
class ToAgent;
}  // namespace trainyard::coordination

/// Both ends of the control stream, behind which gRPC or plain memory carries the messages. Neither
/// end calls back into its user: events are queued and taken, so that all logic runs on the user's
/// own thread.
namespace trainyard::control {

/// Names one stream of one agent; never used twice by a transport, and greater than those of all
/// streams that came before.
using ConnectionId = uint64_t;

/// Messages a connection may have queued in either direction before it is closed: more than the
/// largest burst by far, so that reaching it means that the other side does not read.
inline constexpr int64_t kMaxQueuedMessages = 1024;

/// Memory of an agent's messages that may wait to be taken before no more of its stream is read: a
/// stream of which nothing is known yet has this and one message.
inline constexpr int64_t kMaxUntakenBytes = 256 << 10;

/// The same of all streams: beyond it a stream whose message alone takes more than kMaxUntakenBytes
/// is closed.
inline constexpr int64_t kMaxUntakenBytesOfAll = 64 << 20;

/// Memory that one message of an agent may take once it is parsed; a stream with a larger one is
/// closed. A heartbeat with the counters of 1,024 ranks takes less than two thirds.
inline constexpr int64_t kMaxMessageMemoryBytes = 16 << 20;

/// Largest message either way. A rank table of 10,000 ranks takes about 1 MiB.
inline constexpr int64_t kMaxControlMessageBytes = 4 << 20;

/// Something that happened on the coordinator's end.
struct ServerEvent {
  enum class Kind { kOpened, kMessage, kClosed };

  ConnectionId connection = 0;
  Kind kind = Kind::kOpened;
  std::unique_ptr<coordination::FromAgent> message;  ///< of kMessage
  /// What the message takes of memory, estimated from above; 0 where it came over no wire.
  int64_t memory_bytes = 0;
  /// Of kOpened: the bearer token that the agent showed; empty where it showed none. Secret.
  std::string credential;
  /// Of kOpened: the address that it comes from, without port; empty where that says nothing.
  std::string peer;

  ServerEvent();
  ServerEvent(ConnectionId id, Kind what);
  ServerEvent(ConnectionId id, std::unique_ptr<coordination::FromAgent> fact);
  ServerEvent(ServerEvent&&) noexcept;
  ServerEvent& operator=(ServerEvent&&) noexcept;
  ~ServerEvent();
};

/// The coordinator's end: many streams. Thread-safe.
class ControlTransport {
 public:
  virtual ~ControlTransport() = default;

  /// Takes all queued events, in order per connection; waits up to `timeout` for the first.
  /// A connection gives kOpened once, then messages, then kClosed once.
  virtual std::vector<ServerEvent> take(Duration timeout) = 0;

  /// Ends a take() that is waiting, or the next one.
  virtual void interrupt() = 0;

  /// Queues a message; returns at once. Errors: kUnavailable when the connection is closed or has
  /// kMaxQueuedMessages unsent (it is then closed).
  virtual Status send(ConnectionId connection, const coordination::ToAgent& message) = 0;

  /// The same of a message that goes on with `tail`, fields of a ToAgent as they are sent. What
  /// many agents are told is held once, however many of them have not received it yet.
  virtual Status send_with_tail(ConnectionId connection, const coordination::ToAgent& message,
                                std::shared_ptr<const std::string> tail);

  /// Closes a connection after what was sent to it; nothing more that its agent says is taken, but
  /// for what is queued. Nothing happens when it is closed already.
  virtual void close(ConnectionId connection) = 0;
};

/// Something that happened on an agent's end.
struct ChannelEvent {
  enum class Kind { kOpened, kMessage, kClosed };

  Kind kind = Kind::kOpened;
  std::unique_ptr<coordination::ToAgent> message;  ///< of kMessage
  std::string reason;                              ///< of kClosed

  ChannelEvent();
  ChannelEvent(Kind what, std::string why);
  explicit ChannelEvent(std::unique_ptr<coordination::ToAgent> decision);
  ChannelEvent(ChannelEvent&&) noexcept;
  ChannelEvent& operator=(ChannelEvent&&) noexcept;
  ~ChannelEvent();
};

/// An agent's end: one stream at a time, opened again after it closed. Used from one thread.
class ControlChannel {
 public:
  virtual ~ControlChannel() = default;

  /// Starts to connect; kOpened or kClosed follows. Only when no stream is open or opening.
  virtual void open() = 0;

  /// Takes all queued events without waiting.
  virtual std::vector<ChannelEvent> take() = 0;

  /// A descriptor that polls readable while take() has something; lives as long as the channel.
  virtual int wake_fd() const = 0;

  /// Queues a message; returns at once. Errors: kUnavailable when no stream is open or
  /// kMaxQueuedMessages are unsent.
  virtual Status send(const coordination::FromAgent& message) = 0;

  /// Messages queued and not yet handed to the operating system.
  virtual int64_t unsent() const = 0;

  /// Says that nothing more will be sent and waits up to `timeout` until all is delivered.
  virtual void finish(Duration timeout) = 0;
};

}  // namespace trainyard::control

#include "control/coordinator/grpc_streams.h"

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>

#include <grpcpp/grpcpp.h>

#include "common/proto/coordination.grpc.pb.h"
#include "control/coordinator/event_queue.h"
#include "control/coordinator/message_memory.h"

namespace trainyard::control {

using coordination::FromAgent;
using coordination::ToAgent;

namespace {

constexpr std::string_view kBearer = "Bearer ";
/// How long a stream that is closed may take to receive what was sent to it; then it is cut.
constexpr std::chrono::seconds kFinishTimeout{2};

/// Reads and writes messages as they are sent.
using RawReactor = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;

/// Messages of a stream that wait.
struct Load {
  int64_t messages = 0;
  int64_t bytes = 0;  ///< of memory

  void add(int64_t message_bytes) {
    ++messages;
    bytes += message_bytes;
  }
};

/// The message and, without a copy of it, what follows. Two messages after one another are as one.
grpc::ByteBuffer as_sent(const ToAgent& message, std::shared_ptr<const std::string> tail) {
  const grpc::Slice head(message.SerializeAsString());
  if (tail == nullptr) return {&head, 1};
  using Held = std::shared_ptr<const std::string>;
  auto* const held = new Held(std::move(tail));
  // gRPC does not write to what it sends.
  const grpc::Slice shared(
      const_cast<char*>((*held)->data()), (*held)->size(),
      [](void* kept) { delete static_cast<Held*>(kept); }, held);
  const std::array<grpc::Slice, 2> slices = {head, shared};
  return {slices.data(), slices.size()};
}

/// RFC 6750, section 2.1; empty where there is none.
std::string bearer_token(const grpc::CallbackServerContext& context) {
  const auto found = context.client_metadata().find("authorization");
  if (found == context.client_metadata().end()) return {};
  const std::string_view value(found->second.data(), found->second.size());
  return value.starts_with(kBearer) ? std::string(value.substr(kBearer.size())) : std::string();
}

}  // namespace

/// What the connections share.
class GrpcStreams::Registry {
 public:
  explicit Registry(Watch watch) : watch_(std::move(watch)) {}

  /// Null while shutting down, and for a stream that is not to be.
  std::shared_ptr<GrpcStreams::Connection> add(grpc::CallbackServerContext* context);
  std::shared_ptr<GrpcStreams::Connection> find(ConnectionId id);
  void remove(ConnectionId id);
  std::vector<std::shared_ptr<GrpcStreams::Connection>> all();
  void set_refusing(bool refusing);
  /// The connection is to end, and be cut where it does not in time. Takes no connection's lock.
  void note_closing(ConnectionId id);
  /// Cuts those whose time is over.
  void cut_overdue();
  /// True when every connection has ended within the time.
  bool wait_until_empty(Duration timeout);

  EventQueue<ServerEvent> events;
  std::atomic<int64_t> untaken_bytes = 0;  ///< of all messages in `events`

 private:
  const Watch watch_;
  std::mutex mutex_;
  std::condition_variable removed_;
  bool refusing_ = false;                                                  ///< guarded by mutex_
  ConnectionId next_id_ = 1;                                               ///< guarded by mutex_
  std::map<ConnectionId, std::shared_ptr<GrpcStreams::Connection>> open_;  ///< guarded by mutex_
  /// Those that are to end, and by when; the first first; guarded by mutex_
  std::deque<std::pair<std::chrono::steady_clock::time_point, ConnectionId>> closing_;
};

/// One agent's stream. At most one read and one write are under way; Finish comes once, when no
/// write is under way.
class GrpcStreams::Connection final : public RawReactor {
 public:
  Connection(ConnectionId id, grpc::CallbackServerContext* context, std::string peer,
             Registry& registry)
      : id_(id), context_(context), peer_(std::move(peer)), registry_(registry) {}

  void start() {
    ServerEvent opened(id_, ServerEvent::Kind::kOpened);
    opened.credential = bearer_token(*context_);
    opened.peer = peer_;
    registry_.events.push(std::move(opened));
    const std::lock_guard lock(mutex_);
    StartSendInitialMetadata();  // tells the agent that it is connected
    read_next_locked();
  }

  Status send(const ToAgent& message, std::shared_ptr<const std::string> tail) {
    const std::lock_guard lock(mutex_);
    if (closing_) return Error{ErrorCode::kUnavailable, "control stream: connection is closed"};
    if (static_cast<int64_t>(outgoing_.size()) >= kMaxQueuedMessages) {
      context_->TryCancel();  // before close, after which gRPC may take the context away
      close_locked();
      return Error{ErrorCode::kUnavailable, "control stream: agent has left " +
                                                std::to_string(outgoing_.size()) +
                                                " messages unread; its connection is closed"};
    }
    outgoing_.push_back(as_sent(message, std::move(tail)));
    write_next_locked();
    return {};
  }

  void close() {
    const std::lock_guard lock(mutex_);
    close_locked();
  }

  /// Ends it whatever is unsent.
  void cut() {
    const std::lock_guard lock(mutex_);
    if (!finished_) context_->TryCancel();  // after that gRPC may take the context away
  }

  /// So much of this connection's has been taken from the queue.
  void taken(const Load& load) {
    const std::lock_guard lock(mutex_);
    untaken_.messages -= load.messages;
    untaken_.bytes -= load.bytes;
    read_next_locked();
  }

  void OnReadDone(bool ok) override {
    const std::lock_guard lock(mutex_);
    reading_ = false;
    if (!ok) {
      read_ended_ = true;
      close_locked();
      return;
    }
    if (closing_) return;  // nobody listens to it any more
    std::optional<ServerEvent> event = parse_incoming();
    incoming_.Clear();
    if (!event) return close_locked();  // whoever sends nonsense has nothing more to say
    untaken_.add(event->memory_bytes);
    registry_.untaken_bytes += event->memory_bytes;
    registry_.events.push(*std::move(event));
    read_next_locked();
  }

  void OnWriteDone(bool ok) override {
    const std::lock_guard lock(mutex_);
    writing_ = false;
    outgoing_.pop_front();
    if (!ok) {
      outgoing_.clear();
      close_locked();
      return;
    }
    write_next_locked();
  }

  void OnCancel() override {
    const std::lock_guard lock(mutex_);
    if (!writing_) outgoing_.clear();
    close_locked();
  }

  void OnDone() override {
    registry_.events.push(ServerEvent(id_, ServerEvent::Kind::kClosed));
    registry_.remove(id_);  // may destroy this
  }

 private:
  /// Nothing for bytes that are no message, and for one that takes more memory than there is for
  /// it.
  std::optional<ServerEvent> parse_incoming() {
    int64_t memory_bytes = 0;
    {
      grpc::ProtoBufferReader bytes(&incoming_);
      memory_bytes = parsed_memory(bytes, *FromAgent::descriptor(), kMaxMessageMemoryBytes);
    }
    if (memory_bytes > kMaxMessageMemoryBytes) return std::nullopt;
    if (memory_bytes > kMaxUntakenBytes &&
        registry_.untaken_bytes + memory_bytes > kMaxUntakenBytesOfAll)
      return std::nullopt;
    auto message = std::make_unique<FromAgent>();
    const grpc::Status read =
        grpc::SerializationTraits<FromAgent>::Deserialize(&incoming_, message.get());
    if (!read.ok()) return std::nullopt;
    ServerEvent event(id_, std::move(message));
    event.memory_bytes = memory_bytes;
    return event;
  }

  void read_next_locked() {
    const bool full = untaken_.messages >= kMaxQueuedMessages || untaken_.bytes >= kMaxUntakenBytes;
    if (reading_ || read_ended_ || closing_ || full) return;
    reading_ = true;
    StartRead(&incoming_);
  }

  void write_next_locked() {
    if (writing_ || finished_) return;
    if (!outgoing_.empty()) {
      writing_ = true;
      StartWrite(&outgoing_.front());
    } else if (closing_) {
      finished_ = true;
      Finish(grpc::Status::OK);
    }
  }

  void close_locked() {
    const bool was_closing = std::exchange(closing_, true);
    write_next_locked();
    if (!was_closing && !finished_) registry_.note_closing(id_);
  }

  const ConnectionId id_;
  grpc::CallbackServerContext* const context_;
  const std::string peer_;
  Registry& registry_;

  std::mutex mutex_;
  grpc::ByteBuffer incoming_;              ///< gRPC's while reading_
  std::deque<grpc::ByteBuffer> outgoing_;  ///< the front is gRPC's while writing_
  Load untaken_;
  bool reading_ = false;
  bool read_ended_ = false;
  bool writing_ = false;
  bool closing_ = false;
  bool finished_ = false;
};

namespace {

using ServiceBase =
    coordination::Coordination::WithRawCallbackMethod_Connect<coordination::Coordination::Service>;

/// Refuses a stream that arrives while the transport shuts down, or when its connection has ended.
class Refusal final : public RawReactor {
 public:
  Refusal() { Finish(grpc::Status(grpc::StatusCode::UNAVAILABLE, "shutting down")); }
  void OnDone() override { delete this; }
};

}  // namespace

std::shared_ptr<GrpcStreams::Connection> GrpcStreams::Registry::add(
    grpc::CallbackServerContext* context) {
  const std::lock_guard lock(mutex_);
  if (refusing_) return nullptr;
  const ConnectionId id = next_id_++;
  std::optional<std::string> peer = std::string();
  if (watch_.opened) peer = watch_.opened(id, context->peer());
  if (!peer) return nullptr;
  return open_
      .emplace(id, std::make_shared<GrpcStreams::Connection>(id, context, *std::move(peer), *this))
      .first->second;
}

std::shared_ptr<GrpcStreams::Connection> GrpcStreams::Registry::find(ConnectionId id) {
  const std::lock_guard lock(mutex_);
  const auto it = open_.find(id);
  return it == open_.end() ? nullptr : it->second;
}

void GrpcStreams::Registry::remove(ConnectionId id) {
  std::shared_ptr<GrpcStreams::Connection> last;  // destroyed without the lock
  const std::lock_guard lock(mutex_);
  const auto it = open_.find(id);
  if (it == open_.end()) return;
  last = std::move(it->second);
  open_.erase(it);
  if (watch_.closed) watch_.closed(id);
  removed_.notify_all();
}

std::vector<std::shared_ptr<GrpcStreams::Connection>> GrpcStreams::Registry::all() {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<GrpcStreams::Connection>> connections;
  for (const auto& [id, connection] : open_)
    connections.push_back(connection);
  return connections;
}

void GrpcStreams::Registry::set_refusing(bool refusing) {
  const std::lock_guard lock(mutex_);
  refusing_ = refusing;
}

void GrpcStreams::Registry::note_closing(ConnectionId id) {
  const std::lock_guard lock(mutex_);
  closing_.emplace_back(std::chrono::steady_clock::now() + kFinishTimeout, id);
}

void GrpcStreams::Registry::cut_overdue() {
  std::vector<ConnectionId> overdue;
  {
    const std::lock_guard lock(mutex_);
    const auto now = std::chrono::steady_clock::now();
    for (; !closing_.empty() && closing_.front().first <= now; closing_.pop_front())
      overdue.push_back(closing_.front().second);
  }
  for (const ConnectionId id : overdue) {
    if (const auto connection = find(id)) connection->cut();
  }
}

bool GrpcStreams::Registry::wait_until_empty(Duration timeout) {
  std::unique_lock lock(mutex_);
  return removed_.wait_for(lock, timeout, [this] { return open_.empty(); });
}

class GrpcStreams::Service final : public ServiceBase {
 public:
  explicit Service(Registry& registry) : registry_(registry) {}

  using ServiceBase::Connect;
  RawReactor* Connect(grpc::CallbackServerContext* context) override {
    const std::shared_ptr<Connection> connection = registry_.add(context);
    if (connection == nullptr) return new Refusal;  // deletes itself
    connection->start();
    return connection.get();  // owned by the registry until OnDone
  }

 private:
  Registry& registry_;
};

GrpcStreams::GrpcStreams() : GrpcStreams(Watch{}) {}
GrpcStreams::GrpcStreams(Watch watch) : registry_(std::make_unique<Registry>(std::move(watch))) {}
GrpcStreams::~GrpcStreams() = default;

std::unique_ptr<grpc::Service> GrpcStreams::make_service() {
  return std::make_unique<Service>(*registry_);
}

std::vector<ServerEvent> GrpcStreams::take(Duration timeout) {
  std::vector<ServerEvent> events = registry_->events.take(timeout);
  registry_->cut_overdue();
  std::map<ConnectionId, Load> taken;
  for (const ServerEvent& event : events) {
    if (event.kind != ServerEvent::Kind::kMessage) continue;
    taken[event.connection].add(event.memory_bytes);
    registry_->untaken_bytes -= event.memory_bytes;
  }
  for (const auto& [id, load] : taken) {
    if (const auto connection = registry_->find(id)) connection->taken(load);
  }
  return events;
}

void GrpcStreams::interrupt() { registry_->events.interrupt(); }

Status GrpcStreams::send(ConnectionId connection, const ToAgent& message,
                         std::shared_ptr<const std::string> tail) {
  const auto found = registry_->find(connection);
  if (found == nullptr) {
    return Error{ErrorCode::kUnavailable, "control stream: connection is closed"};
  }
  return found->send(message, std::move(tail));
}

void GrpcStreams::close(ConnectionId connection) {
  if (const auto found = registry_->find(connection)) found->close();
}

bool GrpcStreams::close_all(Duration timeout) {
  for (const auto& connection : registry_->all())
    connection->close();
  return registry_->wait_until_empty(timeout);
}

void GrpcStreams::refuse_new() { registry_->set_refusing(true); }
void GrpcStreams::accept_new() { registry_->set_refusing(false); }

}  // namespace trainyard::control

#include "control/coordinator/grpc_transport.h"

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include <grpcpp/grpcpp.h>

#include "common/proto/coordination.grpc.pb.h"
#include "control/coordinator/event_queue.h"
#include "control/coordinator/reachable_socket.h"

namespace trainyard::control {
namespace {

using coordination::FromAgent;
using coordination::ToAgent;

class Connection;

/// What connections share with the transport.
class Registry {
 public:
  /// Null while shutting down.
  std::shared_ptr<Connection> add(grpc::CallbackServerContext* context);
  std::shared_ptr<Connection> find(ConnectionId id);
  void remove(ConnectionId id);
  std::vector<std::shared_ptr<Connection>> all();
  void refuse_new();
  /// True when every connection has ended within the time.
  bool wait_until_empty(Duration timeout);

  EventQueue<ServerEvent> events;

 private:
  std::mutex mutex_;
  std::condition_variable removed_;
  bool refusing_ = false;                                     ///< guarded by mutex_
  ConnectionId next_id_ = 1;                                  ///< guarded by mutex_
  std::map<ConnectionId, std::shared_ptr<Connection>> open_;  ///< guarded by mutex_
};

/// One agent's stream. At most one read and one write are under way; Finish comes once, when no
/// write is under way.
class Connection final : public grpc::ServerBidiReactor<FromAgent, ToAgent> {
 public:
  Connection(ConnectionId id, grpc::CallbackServerContext* context, Registry& registry)
      : id_(id), context_(context), registry_(registry) {}

  void start() {
    registry_.events.push(ServerEvent(id_, ServerEvent::Kind::kOpened));
    const std::lock_guard lock(mutex_);
    StartSendInitialMetadata();  // tells the agent that it is connected
    read_next_locked();
  }

  Status send(const ToAgent& message) {
    const std::lock_guard lock(mutex_);
    if (closing_) return Error{ErrorCode::kUnavailable, "control stream: connection is closed"};
    if (static_cast<int64_t>(outgoing_.size()) >= kMaxQueuedMessages) {
      context_->TryCancel();  // before close, after which gRPC may take the context away
      close_locked();
      return Error{ErrorCode::kUnavailable, "control stream: agent has left " +
                                                std::to_string(outgoing_.size()) +
                                                " messages unread; its connection is closed"};
    }
    outgoing_.push_back(message);
    write_next_locked();
    return {};
  }

  void close() {
    const std::lock_guard lock(mutex_);
    close_locked();
  }

  /// `count` of this connection's messages have been taken from the queue.
  void taken(int64_t count) {
    const std::lock_guard lock(mutex_);
    untaken_ -= count;
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
    ++untaken_;
    registry_.events.push(
        ServerEvent(id_, std::make_unique<FromAgent>(std::exchange(incoming_, {}))));
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
  void read_next_locked() {
    if (reading_ || read_ended_ || finished_ || untaken_ >= kMaxQueuedMessages) return;
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
    closing_ = true;
    write_next_locked();
  }

  const ConnectionId id_;
  grpc::CallbackServerContext* const context_;
  Registry& registry_;

  std::mutex mutex_;
  FromAgent incoming_;            ///< gRPC's while reading_
  std::deque<ToAgent> outgoing_;  ///< the front is gRPC's while writing_
  int64_t untaken_ = 0;
  bool reading_ = false;
  bool read_ended_ = false;
  bool writing_ = false;
  bool closing_ = false;
  bool finished_ = false;
};

/// Refuses a stream that arrives while the transport shuts down.
class Refusal final : public grpc::ServerBidiReactor<FromAgent, ToAgent> {
 public:
  Refusal() { Finish(grpc::Status(grpc::StatusCode::UNAVAILABLE, "shutting down")); }
  void OnDone() override { delete this; }
};

std::shared_ptr<Connection> Registry::add(grpc::CallbackServerContext* context) {
  const std::lock_guard lock(mutex_);
  if (refusing_) return nullptr;
  const ConnectionId id = next_id_++;
  return open_.emplace(id, std::make_shared<Connection>(id, context, *this)).first->second;
}

std::shared_ptr<Connection> Registry::find(ConnectionId id) {
  const std::lock_guard lock(mutex_);
  const auto it = open_.find(id);
  return it == open_.end() ? nullptr : it->second;
}

void Registry::remove(ConnectionId id) {
  std::shared_ptr<Connection> last;  // destroyed without the lock
  const std::lock_guard lock(mutex_);
  const auto it = open_.find(id);
  if (it == open_.end()) return;
  last = std::move(it->second);
  open_.erase(it);
  removed_.notify_all();
}

std::vector<std::shared_ptr<Connection>> Registry::all() {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Connection>> connections;
  for (const auto& [id, connection] : open_)
    connections.push_back(connection);
  return connections;
}

void Registry::refuse_new() {
  const std::lock_guard lock(mutex_);
  refusing_ = true;
}

bool Registry::wait_until_empty(Duration timeout) {
  std::unique_lock lock(mutex_);
  return removed_.wait_for(lock, timeout, [this] { return open_.empty(); });
}

using ServiceBase = coordination::Coordination::CallbackService;

class Service final : public ServiceBase {
 public:
  explicit Service(Registry& registry) : registry_(registry) {}

  using ServiceBase::Connect;
  grpc::ServerBidiReactor<FromAgent, ToAgent>* Connect(
      grpc::CallbackServerContext* context) override {
    const std::shared_ptr<Connection> connection = registry_.add(context);
    if (connection == nullptr) return new Refusal;  // deletes itself
    connection->start();
    return connection.get();  // owned by the registry until OnDone
  }

 private:
  Registry& registry_;
};

constexpr std::chrono::seconds kShutdownTimeout{1};

/// One socket and what serves it. Those of a transport share its connections.
class Listener {
 public:
  /// Errors: those of ReachableSocket::at; kIo when the socket cannot be made.
  static Result<std::unique_ptr<Listener>> at(const std::string& path, Registry& registry) {
    TRAINYARD_ASSIGN(ReachableSocket socket, ReachableSocket::at(path));
    std::unique_ptr<Listener> listener(new Listener(std::move(socket), registry));
    TRAINYARD_TRY(listener->start(path));
    return listener;
  }

  ~Listener() {
    if (!server_) return;
    server_->Shutdown(std::chrono::system_clock::now() + kShutdownTimeout);
    server_->Wait();
  }

  /// Whether `path` names this socket.
  bool is_at(const std::string& path) const {
    struct stat named {};
    return ::lstat(path.c_str(), &named) == 0 && named.st_dev == made_.st_dev &&
           named.st_ino == made_.st_ino;
  }

 private:
  Listener(ReachableSocket socket, Registry& registry)
      : socket_(std::move(socket)), service_(registry) {}

  Status start(const std::string& path) {
    ::unlink(path.c_str());
    grpc::ServerBuilder builder;
    builder.AddListeningPort("unix:" + socket_.path(), grpc::InsecureServerCredentials());
    builder.RegisterService(&service_);
    builder.SetMaxReceiveMessageSize(static_cast<int>(kMaxControlMessageBytes));
    server_ = builder.BuildAndStart();
    if (!server_ || ::lstat(path.c_str(), &made_) != 0) {
      return Error{ErrorCode::kIo, "control socket " + path +
                                       ": cannot listen; is its directory "
                                       "there and writable?"};
    }
    return {};
  }

  const ReachableSocket socket_;
  Service service_;
  std::unique_ptr<grpc::Server> server_;
  struct stat made_ {};
};

}  // namespace

class GrpcTransport::Impl {
 public:
  explicit Impl(std::string path) : path_(std::move(path)), address_("unix:" + path_) {}

  ~Impl() {
    registry_.refuse_new();
    for (const auto& connection : registry_.all())
      connection->close();
    registry_.wait_until_empty(kShutdownTimeout);
    listeners_.clear();
    ::unlink(path_.c_str());
  }

  bool is_reachable() const {
    const std::lock_guard lock(listeners_mutex_);
    return !listeners_.empty() && listeners_.back()->is_at(path_);
  }

  Status listen() {
    const std::lock_guard lock(listeners_mutex_);
    if (listeners_.size() >= kMaxListeners) {
      return Error{ErrorCode::kUnavailable, "control socket " + path_ + ": removed " +
                                                std::to_string(listeners_.size()) +
                                                " times; it is not made again"};
    }
    TRAINYARD_ASSIGN(std::unique_ptr<Listener> listener, Listener::at(path_, registry_));
    listeners_.push_back(std::move(listener));
    return {};
  }

  std::vector<ServerEvent> take(Duration timeout) {
    std::vector<ServerEvent> events = registry_.events.take(timeout);
    std::map<ConnectionId, int64_t> taken;
    for (const ServerEvent& event : events) {
      if (event.kind == ServerEvent::Kind::kMessage) ++taken[event.connection];
    }
    for (const auto& [id, count] : taken) {
      if (const auto connection = registry_.find(id)) connection->taken(count);
    }
    return events;
  }

  Registry registry_;
  const std::string path_;
  const std::string address_;

 private:
  mutable std::mutex listeners_mutex_;
  /// The last is the one at path_; those before serve the connections made through them.
  std::vector<std::unique_ptr<Listener>> listeners_;
};

Result<std::unique_ptr<GrpcTransport>> GrpcTransport::listen_on_unix_socket(
    const std::string& path) {
  auto impl = std::make_unique<Impl>(path);
  TRAINYARD_TRY(impl->listen());
  return std::unique_ptr<GrpcTransport>(new GrpcTransport(std::move(impl)));
}

GrpcTransport::GrpcTransport(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GrpcTransport::~GrpcTransport() = default;

bool GrpcTransport::is_reachable() const { return impl_->is_reachable(); }
Status GrpcTransport::listen_again() { return impl_->listen(); }
const std::string& GrpcTransport::address() const { return impl_->address_; }
std::vector<ServerEvent> GrpcTransport::take(Duration timeout) { return impl_->take(timeout); }
void GrpcTransport::interrupt() { impl_->registry_.events.interrupt(); }

Status GrpcTransport::send(ConnectionId connection, const ToAgent& message) {
  const auto found = impl_->registry_.find(connection);
  if (found == nullptr) {
    return Error{ErrorCode::kUnavailable, "control stream: connection is closed"};
  }
  return found->send(message);
}

void GrpcTransport::close(ConnectionId connection) {
  if (const auto found = impl_->registry_.find(connection)) found->close();
}

}  // namespace trainyard::control

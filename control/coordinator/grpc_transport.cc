#include "control/coordinator/grpc_transport.h"

#include <mutex>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/service_type.h>

#include "control/coordinator/grpc_streams.h"
#include "control/coordinator/reachable_socket.h"

namespace trainyard::control {
namespace {

constexpr std::chrono::seconds kShutdownTimeout{1};

/// One socket and what serves it. Those of a transport share its streams.
class Listener {
 public:
  /// Errors: those of ReachableSocket::at; kIo when the socket cannot be made.
  static Result<std::unique_ptr<Listener>> at(const std::string& path, GrpcStreams& streams) {
    TRAINYARD_ASSIGN(ReachableSocket socket, ReachableSocket::at(path));
    std::unique_ptr<Listener> listener(new Listener(std::move(socket), streams));
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
  Listener(ReachableSocket socket, GrpcStreams& streams)
      : socket_(std::move(socket)), service_(streams.make_service()) {}

  Status start(const std::string& path) {
    ::unlink(path.c_str());
    grpc::ServerBuilder builder;
    builder.AddListeningPort("unix:" + socket_.path(), grpc::InsecureServerCredentials());
    builder.RegisterService(service_.get());
    builder.SetMaxReceiveMessageSize(static_cast<int>(kMaxControlMessageBytes));
    server_ = builder.BuildAndStart();
    if (!server_ || ::lstat(path.c_str(), &made_) != 0) {
      return Error{ErrorCode::kIo,
                   "control socket " + path +
                       ": cannot listen; does its directory exist, and is it writable?"};
    }
    return {};
  }

  const ReachableSocket socket_;
  const std::unique_ptr<grpc::Service> service_;
  std::unique_ptr<grpc::Server> server_;
  struct stat made_ {};
};

}  // namespace

class GrpcTransport::Impl {
 public:
  explicit Impl(std::string path) : path_(std::move(path)), address_("unix:" + path_) {}

  ~Impl() {
    streams_.refuse_new();
    streams_.close_all(kShutdownTimeout);
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
                                                " times; it is not created again"};
    }
    TRAINYARD_ASSIGN(std::unique_ptr<Listener> listener, Listener::at(path_, streams_));
    listeners_.push_back(std::move(listener));
    return {};
  }

  GrpcStreams streams_;
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

std::vector<ServerEvent> GrpcTransport::take(Duration timeout) {
  return impl_->streams_.take(timeout);
}
void GrpcTransport::interrupt() { impl_->streams_.interrupt(); }
Status GrpcTransport::send(ConnectionId connection, const coordination::ToAgent& message) {
  return impl_->streams_.send(connection, message);
}
Status GrpcTransport::send_with_tail(ConnectionId connection, const coordination::ToAgent& message,
                                     std::shared_ptr<const std::string> tail) {
  return impl_->streams_.send(connection, message, std::move(tail));
}
void GrpcTransport::close(ConnectionId connection) { impl_->streams_.close(connection); }

}  // namespace trainyard::control

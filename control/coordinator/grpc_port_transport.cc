#include "control/coordinator/grpc_port_transport.h"

#include <charconv>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>

#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/service_type.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server_posix.h>

#include "common/base/check.h"
#include "control/coordinator/grpc_streams.h"

namespace trainyard::control {
namespace {

constexpr std::chrono::seconds kShutdownTimeout{1};
// A peer whose machine is gone says nothing: it is asked, and the stream ends when it does not
// answer. Agents that live speak several times a second.
constexpr int kKeepaliveMs = 30'000;
constexpr int kKeepaliveTimeoutMs = 10'000;
/// Agents ask every 10 s whether we are there (grpc_channel.cc).
constexpr int kShortestPingPeriodMs = 5'000;
/// A connection that the front has passed on is known to gRPC by this and its descriptor.
constexpr std::string_view kPeerPrefix = "fd:";

std::optional<int> descriptor_of(std::string_view peer) {
  if (!peer.starts_with(kPeerPrefix)) return std::nullopt;
  peer.remove_prefix(kPeerPrefix.size());
  int fd = -1;
  const auto [end, error] = std::from_chars(peer.data(), peer.data() + peer.size(), fd);
  if (error != std::errc() || end != peer.data() + peer.size()) return std::nullopt;
  return fd;
}

std::string port_replaced(const std::string& address, int port) {
  return address.substr(0, address.rfind(':') + 1) + std::to_string(port);
}

}  // namespace

class GrpcPortTransport::Impl {
 public:
  explicit Impl(Options options)
      : streams_(
            {[this](ConnectionId stream, const std::string& peer) { return opened(stream, peer); },
             [this](ConnectionId stream) { closed(stream); }}),
        options_(std::move(options)) {}

  ~Impl() {
    streams_.refuse_new();
    const std::lock_guard lock(mutex_);
    stop_locked();
  }

  Status show(const TlsIdentity& identity) {
    const std::lock_guard lock(mutex_);
    if (server_ && shown_ == identity) return {};
    TRAINYARD_TRY(TlsServer::make(identity));  // before what serves now is given up
    stop_locked();
    start_server_locked();
    Front::Options front;
    front.address = options_.address;
    front.identity = identity;
    front.bounds = options_.bounds;
    front.logger = options_.logger;
    front.serve = [server = server_.get()](int fd) { grpc::AddInsecureChannelFromFd(server, fd); };
    Result<std::unique_ptr<Front>> listening = Front::listen(std::move(front));
    if (!listening) {
      stop_locked();
      return listening.error();
    }
    shown_ = identity;
    options_.address = port_replaced(options_.address, (*listening)->port());
    const std::lock_guard front_lock(front_mutex_);
    front_ = *std::move(listening);
    return {};
  }

  int port() const {
    const std::lock_guard lock(front_mutex_);
    return front_ ? front_->port() : 0;
  }

  void admit(ConnectionId stream) {
    const std::lock_guard lock(front_mutex_);
    if (front_) front_->admit(stream);
  }

  Front::Counts connections() const {
    const std::lock_guard lock(front_mutex_);
    return front_ ? front_->counts() : Front::Counts{};
  }

  GrpcStreams streams_;

 private:
  std::optional<std::string> opened(ConnectionId stream, const std::string& peer) {
    const std::optional<int> fd = descriptor_of(peer);
    const std::lock_guard lock(front_mutex_);
    return fd && front_ ? front_->stream_opened(stream, *fd) : std::nullopt;
  }

  void closed(ConnectionId stream) {
    const std::lock_guard lock(front_mutex_);
    if (front_) front_->stream_closed(stream);
  }

  void start_server_locked() {
    grpc::ServerBuilder builder;
    service_ = streams_.make_service();
    builder.RegisterService(service_.get());
    builder.SetMaxReceiveMessageSize(static_cast<int>(kMaxControlMessageBytes));
    // Agents compress nothing. gRPC 1.51 unpacks before it looks at the size: of 256 KiB a stranger
    // would make 256 MiB.
    builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
    builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
    builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                               kShortestPingPeriodMs);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 1);  // Http2Gate lets no more pass
    if (options_.memory_bytes > 0) {
      grpc::ResourceQuota quota("control");
      quota.Resize(static_cast<size_t>(options_.memory_bytes));
      builder.SetResourceQuota(quota);
    }
    streams_.accept_new();
    server_ = builder.BuildAndStart();
    TRAINYARD_CHECK(server_ != nullptr);  // it listens nowhere
  }

  void stop_locked() {
    if (!server_) return;
    streams_.refuse_new();  // whoever comes now would be cut off by the server's end
    streams_.close_all(kShutdownTimeout);
    server_->Shutdown(std::chrono::system_clock::now() + kShutdownTimeout);
    std::unique_ptr<Front> front;  // ends without the lock: its thread may be waiting for it
    {
      const std::lock_guard lock(front_mutex_);
      front = std::move(front_);
    }
    front.reset();
    server_->Wait();
    server_.reset();
    service_.reset();
  }

  mutable std::mutex mutex_;
  Options options_;  ///< guarded by mutex_, as all that follows
  TlsIdentity shown_;
  std::unique_ptr<grpc::Service> service_;
  std::unique_ptr<grpc::Server> server_;

  mutable std::mutex front_mutex_;  ///< taken last
  std::unique_ptr<Front> front_;    ///< guarded by front_mutex_
};

GrpcPortTransport::GrpcPortTransport(Options options)
    : impl_(std::make_unique<Impl>(std::move(options))) {}
GrpcPortTransport::~GrpcPortTransport() = default;

int GrpcPortTransport::port() const { return impl_->port(); }
Status GrpcPortTransport::show(const TlsIdentity& identity) { return impl_->show(identity); }

void GrpcPortTransport::admit(ConnectionId connection) { impl_->admit(connection); }
Front::Counts GrpcPortTransport::connections() const { return impl_->connections(); }

std::vector<ServerEvent> GrpcPortTransport::take(Duration timeout) {
  return impl_->streams_.take(timeout);
}
void GrpcPortTransport::interrupt() { impl_->streams_.interrupt(); }
Status GrpcPortTransport::send(ConnectionId connection, const coordination::ToAgent& message) {
  return impl_->streams_.send(connection, message);
}
Status GrpcPortTransport::send_with_tail(ConnectionId connection,
                                         const coordination::ToAgent& message,
                                         std::shared_ptr<const std::string> tail) {
  return impl_->streams_.send(connection, message, std::move(tail));
}
void GrpcPortTransport::close(ConnectionId connection) { impl_->streams_.close(connection); }

}  // namespace trainyard::control

#include "control/coordinator/grpc_port_transport.h"

#include <mutex>
#include <utility>

#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/service_type.h>

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
/// Streams of one connection; an agent opens one.
constexpr int kMaxStreamsPerConnection = 4;

std::string port_replaced(const std::string& address, int port) {
  return address.substr(0, address.rfind(':') + 1) + std::to_string(port);
}

}  // namespace

class GrpcPortTransport::Impl {
 public:
  explicit Impl(std::string address) : address_(std::move(address)) {}

  ~Impl() {
    streams_.refuse_new();
    const std::lock_guard lock(mutex_);
    stop_locked();
  }

  Status show(const TlsIdentity& identity) {
    const std::lock_guard lock(mutex_);
    if (server_ && shown_ == identity) return {};
    stop_locked();
    grpc::SslServerCredentialsOptions options;
    options.pem_key_cert_pairs.push_back({identity.key, identity.certificate});
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort(address_, grpc::SslServerCredentials(options), &port);
    service_ = streams_.make_service();
    builder.RegisterService(service_.get());
    builder.SetMaxReceiveMessageSize(static_cast<int>(kMaxControlMessageBytes));
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                               kShortestPingPeriodMs);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreamsPerConnection);
    // Two processes on one port would each get half of the agents.
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    streams_.accept_new();
    server_ = builder.BuildAndStart();
    if (!server_ || port == 0) {
      server_.reset();
      return Error{ErrorCode::kIo, "control stream: cannot listen on " + address_ +
                                       "; is the address free, and the certificate with its key "
                                       "in PEM?"};
    }
    address_ = port_replaced(address_, port);
    port_ = port;
    shown_ = identity;
    return {};
  }

  int port() const {
    const std::lock_guard lock(mutex_);
    return port_;
  }

  GrpcStreams streams_;

 private:
  void stop_locked() {
    if (!server_) return;
    streams_.refuse_new();  // whoever comes now would be cut off by the server's end
    streams_.close_all(kShutdownTimeout);
    server_->Shutdown(std::chrono::system_clock::now() + kShutdownTimeout);
    server_->Wait();
    server_.reset();
    service_.reset();
    port_ = 0;
  }

  mutable std::mutex mutex_;
  std::string address_;  ///< guarded by mutex_, as all that follows
  int port_ = 0;
  TlsIdentity shown_;
  std::unique_ptr<grpc::Service> service_;
  std::unique_ptr<grpc::Server> server_;
};

GrpcPortTransport::GrpcPortTransport(std::string address)
    : impl_(std::make_unique<Impl>(std::move(address))) {}
GrpcPortTransport::~GrpcPortTransport() = default;

int GrpcPortTransport::port() const { return impl_->port(); }
Status GrpcPortTransport::show(const TlsIdentity& identity) { return impl_->show(identity); }

std::vector<ServerEvent> GrpcPortTransport::take(Duration timeout) {
  return impl_->streams_.take(timeout);
}
void GrpcPortTransport::interrupt() { impl_->streams_.interrupt(); }
Status GrpcPortTransport::send(ConnectionId connection, const coordination::ToAgent& message) {
  return impl_->streams_.send(connection, message);
}
void GrpcPortTransport::close(ConnectionId connection) { impl_->streams_.close(connection); }

}  // namespace trainyard::control

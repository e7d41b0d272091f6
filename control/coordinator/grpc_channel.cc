#include "control/coordinator/grpc_channel.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include <grpcpp/grpcpp.h>

#include "common/io/file.h"
#include "common/proto/coordination.grpc.pb.h"
#include "control/coordinator/event_queue.h"
#include "control/coordinator/reachable_socket.h"

namespace trainyard::control {
namespace {

using coordination::FromAgent;
using coordination::ToAgent;

/// How long connecting may take before it counts as failed.
constexpr int kConnectTimeoutMs = 5000;
constexpr std::chrono::seconds kDestructionTimeout{10};
constexpr int64_t kMaxSecretBytes = 1 << 20;

const std::string kUnixPrefix = "unix:";

/// nullopt: no Unix socket, or its folder is gone, which connecting will say.
std::optional<ReachableSocket> socket_of(const std::string& address) {
  if (!address.starts_with(kUnixPrefix)) return std::nullopt;
  Result<ReachableSocket> socket = ReachableSocket::at(address.substr(kUnixPrefix.size()));
  if (!socket) return std::nullopt;
  return *std::move(socket);
}

/// What ChannelSecurity says, read.
struct Secrets {
  std::string authorities;
  std::string token;
  std::chrono::milliseconds keepalive{};
};

Result<Secrets> read_secrets(const ChannelSecurity& security) {
  Secrets secrets;
  secrets.keepalive = security.keepalive;
  TRAINYARD_ASSIGN(secrets.authorities, read_file(security.authorities, kMaxSecretBytes));
  TRAINYARD_ASSIGN(secrets.token, read_file(security.token, kMaxSecretBytes));
  while (!secrets.token.empty() && secrets.token.back() == '\n')
    secrets.token.pop_back();
  if (secrets.token.empty()) {
    return Error{ErrorCode::kInvalidConfig,
                 security.token.string() + ": found nothing, wanted a token"};
  }
  return secrets;
}

std::shared_ptr<grpc::ChannelCredentials> credentials_of(const std::optional<Secrets>& secrets) {
  if (!secrets) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = secrets->authorities;
  return grpc::SslCredentials(options);
}

std::shared_ptr<grpc::Channel> connect(const std::string& address,
                                       const std::optional<Secrets>& secrets) {
  grpc::ChannelArguments arguments;
  // A channel of its own per attempt: the supervisor, not gRPC, decides when to try again.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectTimeoutMs);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetMaxReceiveMessageSize(static_cast<int>(kMaxControlMessageBytes));
  if (secrets) {
    // A coordinator whose machine is gone says nothing: it is asked, also while there is nothing
    // else to say to it. gRPC would ask twice and then no more.
    const auto keepalive_ms = static_cast<int>(secrets->keepalive.count());
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, keepalive_ms);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, keepalive_ms / 2);
    arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  }
  return grpc::CreateCustomChannel(address, credentials_of(secrets), arguments);
}

}  // namespace

struct GrpcChannel::Shared {
  EventQueue<ChannelEvent> events;
};

/// One stream. At most one read and one write are under way. Destroyed by the channel's owner after
/// OnDone and never inside a reaction: with it goes what may be the last grpc::Channel of the
/// process, and gRPC would then wait for its reacting threads, the caller among them.
class GrpcChannel::Stream final : public grpc::ClientBidiReactor<FromAgent, ToAgent> {
 public:
  Stream(const std::string& address, const std::optional<Secrets>& secrets,
         std::shared_ptr<Shared> shared)
      : shared_(std::move(shared)),
        socket_(socket_of(address)),
        channel_(connect(socket_ ? kUnixPrefix + socket_->path() : address, secrets)),
        stub_(coordination::Coordination::NewStub(channel_)) {
    if (secrets) context_.AddMetadata("authorization", "Bearer " + secrets->token);
  }

  void start() {
    stub_->async()->Connect(&context_, this);
    const std::lock_guard lock(mutex_);
    StartRead(&incoming_);
    AddHold();  // released by finish or a failure: sends come from outside of reactions
    StartCall();
    held_ = true;
  }

  Status send(const FromAgent& message) {
    const std::lock_guard lock(mutex_);
    if (!open_ || finishing_ || done_) {
      return Error{ErrorCode::kUnavailable, "control stream: not open"};
    }
    if (static_cast<int64_t>(outgoing_.size()) >= kMaxQueuedMessages) {
      return Error{ErrorCode::kUnavailable, "control stream: " + std::to_string(outgoing_.size()) +
                                                " messages unsent; the coordinator does not read"};
    }
    outgoing_.push_back(message);
    write_next_locked();
    return {};
  }

  int64_t unsent() const {
    const std::lock_guard lock(mutex_);
    return static_cast<int64_t>(outgoing_.size());
  }

  /// No more messages; true once the server has seen all.
  bool finish(Duration timeout) {
    std::unique_lock lock(mutex_);
    finishing_ = true;
    write_next_locked();
    return ended_.wait_for(lock, timeout, [this] { return done_; });
  }

  void cancel() { context_.TryCancel(); }

  bool is_done() const {
    const std::lock_guard lock(mutex_);
    return done_;
  }

  void OnReadInitialMetadataDone(bool ok) override {
    if (!ok) return;
    const std::lock_guard lock(mutex_);
    open_locked();
  }

  void OnReadDone(bool ok) override {
    const std::lock_guard lock(mutex_);
    if (!ok) {
      finishing_ = true;
      outgoing_.erase(outgoing_.begin() + (writing_ ? 1 : 0), outgoing_.end());
      return release_locked();
    }
    open_locked();  // gRPC's threads tell the first message and the opening before it in any order
    shared_->events.push(ChannelEvent(std::make_unique<ToAgent>(std::exchange(incoming_, {}))));
    StartRead(&incoming_);
  }

  void OnWriteDone(bool ok) override {
    const std::lock_guard lock(mutex_);
    writing_ = false;
    outgoing_.pop_front();
    if (!ok) {
      outgoing_.clear();
      return release_locked();
    }
    write_next_locked();
  }

  void OnDone(const grpc::Status& status) override {
    const std::lock_guard lock(mutex_);
    done_ = true;
    shared_->events.push(ChannelEvent(ChannelEvent::Kind::kClosed, status.ok()
                                                                       ? "closed by the coordinator"
                                                                       : status.error_message()));
    ended_.notify_all();  // under the lock: the owner may destroy this once it has it
  }

 private:
  void open_locked() {
    if (std::exchange(open_, true)) return;
    shared_->events.push(ChannelEvent(ChannelEvent::Kind::kOpened, ""));
  }

  void write_next_locked() {
    if (writing_ || !held_) return;
    if (!outgoing_.empty()) {
      writing_ = true;
      StartWrite(&outgoing_.front());
    } else if (finishing_) {
      StartWritesDone();
      release_locked();
    }
  }

  void release_locked() {
    if (std::exchange(held_, false)) RemoveHold();
  }

  const std::shared_ptr<Shared> shared_;
  const std::optional<ReachableSocket> socket_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<coordination::Coordination::Stub> stub_;
  grpc::ClientContext context_;

  mutable std::mutex mutex_;
  std::condition_variable ended_;
  ToAgent incoming_;                ///< gRPC's while reading
  std::deque<FromAgent> outgoing_;  ///< the front is gRPC's while writing_
  bool open_ = false;
  bool held_ = false;
  bool writing_ = false;
  bool finishing_ = false;
  bool done_ = false;
};

GrpcChannel::GrpcChannel(std::string address, std::optional<ChannelSecurity> security)
    : address_(std::move(address)),
      security_(std::move(security)),
      shared_(std::make_shared<Shared>()) {}

GrpcChannel::~GrpcChannel() { retire(); }

void GrpcChannel::retire() {
  if (stream_ == nullptr) return;
  if (!stream_->is_done()) {
    stream_->cancel();
    // A cancelled call ends at once. Should gRPC never say so, the memory is given up rather than
    // pulled from under it.
    if (!stream_->finish(kDestructionTimeout)) (void)stream_.release();
  }
  stream_.reset();
}

void GrpcChannel::open() {
  retire();
  std::optional<Secrets> secrets;
  if (security_) {
    Result<Secrets> read = read_secrets(*security_);
    if (!read) {
      shared_->events.push(ChannelEvent(ChannelEvent::Kind::kClosed, read.error().message));
      return;
    }
    secrets = *std::move(read);
  }
  stream_ = std::make_unique<Stream>(address_, secrets, shared_);
  stream_->start();
}

std::vector<ChannelEvent> GrpcChannel::take() { return shared_->events.take(Duration::zero()); }

int GrpcChannel::wake_fd() const { return shared_->events.wake_fd(); }

Status GrpcChannel::send(const FromAgent& message) {
  if (stream_ == nullptr) return Error{ErrorCode::kUnavailable, "control stream: not open"};
  return stream_->send(message);
}

int64_t GrpcChannel::unsent() const { return stream_ == nullptr ? 0 : stream_->unsent(); }

void GrpcChannel::finish(Duration timeout) {
  if (stream_ == nullptr || stream_->is_done()) return;
  if (!stream_->finish(timeout)) stream_->cancel();
}

}  // namespace trainyard::control

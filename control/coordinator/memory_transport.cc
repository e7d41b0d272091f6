#include "control/coordinator/memory_transport.h"

#include <map>
#include <mutex>
#include <utility>

#include "common/proto/coordination.pb.h"
#include "control/coordinator/event_queue.h"

namespace trainyard::control {

struct MemoryTransport::Hub {
  std::mutex mutex;
  bool reachable = true;                                                   ///< guarded by mutex
  ConnectionId next_id = 1;                                                ///< guarded by mutex
  std::map<ConnectionId, std::shared_ptr<EventQueue<ChannelEvent>>> open;  ///< guarded by mutex
  EventQueue<ServerEvent> events;

  /// Both ends learn of it; nothing happens for a connection that is closed.
  void close_locked(ConnectionId id, const std::string& reason) {
    const auto it = open.find(id);
    if (it == open.end()) return;
    it->second->push(ChannelEvent(ChannelEvent::Kind::kClosed, reason));
    open.erase(it);
    events.push(ServerEvent(id, ServerEvent::Kind::kClosed));
  }
};

class MemoryTransport::Channel final : public ControlChannel {
 public:
  explicit Channel(std::shared_ptr<Hub> hub)
      : hub_(std::move(hub)), queue_(std::make_shared<EventQueue<ChannelEvent>>()) {}

  ~Channel() override { finish(Duration::zero()); }

  void open() override {
    const std::lock_guard lock(hub_->mutex);
    if (!hub_->reachable) {
      queue_->push(ChannelEvent(ChannelEvent::Kind::kClosed, "nobody listens"));
      return;
    }
    id_ = hub_->next_id++;
    hub_->open[id_] = queue_;
    hub_->events.push(ServerEvent(id_, ServerEvent::Kind::kOpened));
    queue_->push(ChannelEvent(ChannelEvent::Kind::kOpened, ""));
  }

  std::vector<ChannelEvent> take() override { return queue_->take(Duration::zero()); }
  int wake_fd() const override { return queue_->wake_fd(); }
  int64_t unsent() const override { return 0; }

  Status send(const coordination::FromAgent& message) override {
    const std::lock_guard lock(hub_->mutex);
    if (!hub_->open.contains(id_)) {
      return Error{ErrorCode::kUnavailable, "control stream: not open"};
    }
    hub_->events.push(ServerEvent(id_, std::make_unique<coordination::FromAgent>(message)));
    return {};
  }

  void finish(Duration) override {
    const std::lock_guard lock(hub_->mutex);
    hub_->close_locked(id_, "finished");
  }

 private:
  const std::shared_ptr<Hub> hub_;
  const std::shared_ptr<EventQueue<ChannelEvent>> queue_;
  ConnectionId id_ = 0;  ///< guarded by hub_->mutex
};

MemoryTransport::MemoryTransport() : hub_(std::make_shared<Hub>()) {}

MemoryTransport::~MemoryTransport() { set_reachable(false); }

std::unique_ptr<ControlChannel> MemoryTransport::make_channel() {
  return std::make_unique<Channel>(hub_);
}

void MemoryTransport::set_reachable(bool reachable) {
  const std::lock_guard lock(hub_->mutex);
  hub_->reachable = reachable;
  while (!reachable && !hub_->open.empty()) {
    hub_->close_locked(hub_->open.begin()->first, "the coordinator went away");
  }
}

std::vector<ServerEvent> MemoryTransport::take(Duration timeout) {
  return hub_->events.take(timeout);
}

void MemoryTransport::interrupt() { hub_->events.interrupt(); }

Status MemoryTransport::send(ConnectionId connection, const coordination::ToAgent& message) {
  const std::lock_guard lock(hub_->mutex);
  const auto it = hub_->open.find(connection);
  if (it == hub_->open.end()) {
    return Error{ErrorCode::kUnavailable, "control stream: connection is closed"};
  }
  it->second->push(ChannelEvent(std::make_unique<coordination::ToAgent>(message)));
  return {};
}

void MemoryTransport::close(ConnectionId connection) {
  const std::lock_guard lock(hub_->mutex);
  hub_->close_locked(connection, "closed by the coordinator");
}

}  // namespace trainyard::control

#include "worker/comm/factory.h"

#include <algorithm>
#include <cerrno>
#include <numeric>
#include <sys/socket.h>
#include <utility>

#include "worker/comm/host/group_communicator.h"
#include "worker/comm/host/local_connector.h"
#include "worker/comm/host/memory_segment.h"
#include "worker/comm/host/message.h"
#include "worker/comm/host/ring_order.h"
#include "worker/comm/host/socket.h"
#include "worker/comm/host/socket_mesh.h"

namespace trainyard::comm {
namespace {

/// A member is 16 bits of the message header.
constexpr size_t kWorldSizeMax = 65'535;

Result<GroupIdentity> world_of(const Options& options) {
  const auto invalid = [](const std::string& what) {
    return Error{ErrorCode::kInvalidConfig, "communicator options: " + what};
  };
  const size_t size = options.endpoints.size();
  if (size == 0 || size > kWorldSizeMax) {
    return invalid(std::to_string(size) + " endpoints, wanted 1.." + std::to_string(kWorldSizeMax));
  }
  if (options.rank < 0 || static_cast<size_t>(options.rank) >= size) {
    return invalid("rank " + std::to_string(options.rank) + " is not in 0.." +
                   std::to_string(size - 1));
  }
  if (options.deadline <= std::chrono::milliseconds::zero()) {
    return invalid("deadline is " + std::to_string(options.deadline.count()) +
                   " ms, wanted more than 0");
  }
  GroupIdentity identity;
  identity.job_uid = options.job_uid;
  identity.generation = options.generation;
  identity.member = options.rank;
  identity.global_ranks.resize(size);
  std::iota(identity.global_ranks.begin(), identity.global_ranks.end(), 0);
  identity.deadline = options.deadline;
  TRAINYARD_ASSIGN(identity.ring, complete_ring_order(options.ring_order, identity.size()));
  return identity;
}

bool on_one_host(const Options& options) {
  return std::all_of(options.endpoints.begin(), options.endpoints.end(), [&](const Endpoint& e) {
    return !e.host_id.empty() && e.host_id == options.endpoints.front().host_id;
  });
}

}  // namespace

std::string_view name_of(TransportKind kind) {
  switch (kind) {
    case TransportKind::kAuto:
      return "auto";
    case TransportKind::kLocal:
      return "local";
    case TransportKind::kShm:
      return "shm";
    case TransportKind::kTcp:
      return "tcp";
  }
  return "?";
}

Result<Listener> Listener::bind(const std::string& host) {
  TRAINYARD_ASSIGN(SocketAddress address, make_address(host, 0));
  if (host == "0.0.0.0" || host == "::") {
    return Error{ErrorCode::kInvalidConfig,
                 "listen on '" + host + "': wanted the address that peers connect to"};
  }
  UniqueFd fd(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return io_error("make a socket", errno);
  if (::bind(fd.get(), address.raw(), address.length) != 0) {
    return io_error("bind to " + host, errno);
  }
  // Whole worlds connect at once, before the first of them is accepted.
  if (::listen(fd.get(), 4096) != 0) return io_error("listen on " + host, errno);
  address.length = sizeof(address.storage);
  if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address.storage), &address.length) !=
      0) {
    return io_error("ask for the port at " + host, errno);
  }
  return Listener(std::move(fd), to_string(address));
}

Result<std::unique_ptr<Communicator>> make_communicator(TransportKind kind, const Options& options,
                                                        Listener listener) {
  TRAINYARD_ASSIGN(GroupIdentity identity, world_of(options));
  Options completed = options;
  completed.ring_order = identity.ring;
  if (identity.size() == 1) return GroupCommunicator::make(std::move(identity), nullptr);
  if (kind == TransportKind::kLocal) {
    return Error{ErrorCode::kInvalidConfig,
                 "transport local connects the threads of one process: use "
                 "make_local_communicator, or transport shm or tcp"};
  }
  if (kind == TransportKind::kShm && !on_one_host(options)) {
    return Error{ErrorCode::kInvalidConfig,
                 "transport shm wants one host_id for all ranks: use tcp or auto"};
  }
  if (kind == TransportKind::kAuto) {
    kind = on_one_host(options) ? TransportKind::kShm : TransportKind::kTcp;
  }
  if (!listener.valid()) {
    return Error{ErrorCode::kInvalidConfig,
                 "a world of " + std::to_string(identity.size()) +
                     " ranks wants a listener: make one with Listener::bind"};
  }
  TRAINYARD_ASSIGN(std::shared_ptr<SocketMesh> mesh,
                   SocketMesh::make(kind == TransportKind::kShm ? SocketMesh::Data::kMemory
                                                                : SocketMesh::Data::kSockets,
                                    completed, std::move(listener)));
  return GroupCommunicator::make(std::move(identity), std::move(mesh));
}

Result<std::unique_ptr<Communicator>> make_local_communicator(const Options& options,
                                                              std::shared_ptr<LocalWorld> world) {
  TRAINYARD_ASSIGN(GroupIdentity identity, world_of(options));
  return GroupCommunicator::make(std::move(identity),
                                 std::make_shared<LocalConnector>(std::move(world)));
}

int64_t eager_bytes(int size) { return MemorySegment::ring_bytes_for(size) - kHeaderBytes; }

}  // namespace trainyard::comm

#include "worker/comm/host/socket_mesh.h"

#include <algorithm>
#include <optional>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <utility>

#include "common/hash/hash.h"
#include "worker/comm/host/dialer.h"
#include "worker/comm/host/life_probe.h"
#include "worker/comm/host/memory_transport.h"
#include "worker/comm/host/ring_order.h"
#include "worker/comm/host/shared_memory_setup.h"
#include "worker/comm/host/spin.h"
#include "worker/comm/host/tcp_transport.h"
#include "worker/comm/host/wire.h"

namespace trainyard::comm {
namespace {

using Clock = std::chrono::steady_clock;

/// How often who waits for peers to connect looks whether one that is connected failed meanwhile.
constexpr std::chrono::milliseconds kLookEvery{20};
/// How long a rank that gives up waits for those whose handshake is under way, to tell them why.
constexpr std::chrono::milliseconds kTellGrace{200};
/// More than a peer says before this rank has met all.
constexpr size_t kLookBytes =
    4 * static_cast<size_t>(kControlHeaderBytes + kControlPayloadBytesMax);

HandshakeIdentity identity_of(const Options& options) {
  HandshakeIdentity identity;
  identity.job = xxh3_128(std::as_bytes(std::span(options.job_uid)));
  identity.generation = options.generation;
  identity.rank = static_cast<uint32_t>(options.rank);
  identity.world_size = static_cast<uint32_t>(options.endpoints.size());
  identity.ring = hash_ring(options.ring_order);
  identity.key = options.key;
  if (!options.build.empty()) {
    const Hash128 build = xxh3_128(std::as_bytes(std::span(options.build)));
    identity.build = get_le<uint32_t>(std::as_bytes(std::span(build)).data());
  }
  return identity;
}

/// News by the hub's control connections; they are closed with this.
class HubControl final : public ControlPlane {
 public:
  HubControl(std::shared_ptr<HubState> hub, const std::shared_ptr<Group>& group,
             std::vector<UniqueFd> connections)
      : hub_(std::move(hub)), slot_(hub_->add(group, std::move(connections))) {}
  ~HubControl() override { hub_->remove(slot_); }

  void send_abort(const Failure& failure) override {
    ControlFrame frame;
    frame.kind = ControlKind::kAbort;
    frame.failure = failure;
    hub_->send(slot_, frame);
  }
  void send_waiting(const WaitReport& report) override {
    ControlFrame frame;
    frame.kind = ControlKind::kWaiting;
    frame.waiting = report;
    hub_->send(slot_, frame);
  }
  void send_bye() override { hub_->send(slot_, ControlFrame{}); }

 private:
  const std::shared_ptr<HubState> hub_;
  const uint64_t slot_;
};

/// Tells who is connected already that this rank gives up, so that they need not wait in vain.
void give_up(const std::vector<UniqueFd>& control, const Error& error) {
  ControlFrame frame;
  frame.kind = ControlKind::kAbort;
  frame.failure = Failure(error);
  const auto bytes = encode(frame);
  for (const UniqueFd& fd : control) {
    if (fd.valid()) (void)write_exactly(fd.get(), bytes, Clock::now());
  }
}

/// What a peer has said so far, and whether it has closed; nothing is taken from the connection,
/// since some of it is for later (shared_memory_setup.h).
struct Said {
  std::optional<Error> abort;
  bool bye = false;
  bool closed = false;
};

Said look_at(int fd) {
  Said said;
  // First: what it said before it closed is there by then.
  pollfd entry{fd, POLLRDHUP, 0};
  said.closed = ::poll(&entry, 1, 0) > 0;
  std::vector<std::byte> bytes(kLookBytes);
  const ssize_t got = ::recv(fd, bytes.data(), bytes.size(), MSG_PEEK | MSG_DONTWAIT);
  bytes.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
  std::span<const std::byte> rest(bytes);
  while (rest.size() >= static_cast<size_t>(kControlHeaderBytes)) {
    const auto payload =
        control_payload_bytes(rest.first<static_cast<size_t>(kControlHeaderBytes)>());
    if (!payload) break;  // who reads it in the end refuses it
    const auto frame_bytes = static_cast<size_t>(kControlHeaderBytes + *payload);
    if (rest.size() < frame_bytes) break;
    const auto frame = decode_control(rest.first(frame_bytes));
    if (frame && frame->kind == ControlKind::kAbort) said.abort = frame->failure.error;
    said.bye = said.bye || (frame && frame->kind == ControlKind::kBye);
    rest = rest.subspan(frame_bytes);
  }
  return said;
}

/// An error if a connected peer gave up or is gone, be it after words that nobody has read yet.
Status check_connected(const GroupIdentity& identity, const std::vector<UniqueFd>& control) {
  std::vector<int> lost;
  for (int member = 0; member < identity.size(); ++member) {
    const UniqueFd& fd = control[static_cast<size_t>(member)];
    if (!fd.valid()) continue;
    const Said said = look_at(fd.get());
    const int rank = identity.rank_of(member);
    // Who gave up says for whom, which tells more than that somebody is gone.
    if (said.abort) return gave_up(rank, *said.abort).with_context("meeting the peers");
    if (said.closed && !said.bye) lost.push_back(rank);
  }
  if (lost.empty()) return {};
  const bool one = lost.size() == 1;
  return Error{ErrorCode::kPeerLost, "meeting the peers: " + describe_ranks(lost) +
                                         (one ? " is lost: it closed its connection"
                                              : " are lost: they closed their connections")};
}

}  // namespace

Result<std::shared_ptr<SocketMesh>> SocketMesh::make(Data data, const Options& options,
                                                     Listener listener) {
  std::vector<SocketAddress> addresses;
  for (const Endpoint& endpoint : options.endpoints) {
    auto address = parse_address(endpoint.address);
    if (!address) {
      return std::move(address).error().with_context("endpoint of rank " +
                                                     std::to_string(endpoint.rank));
    }
    if (endpoint.rank != static_cast<int>(addresses.size())) {
      return Error{ErrorCode::kInvalidConfig, "endpoint " + std::to_string(addresses.size()) +
                                                  " is of rank " + std::to_string(endpoint.rank) +
                                                  ": endpoints must be in rank order"};
    }
    addresses.push_back(*address);
  }
  TRAINYARD_ASSIGN(auto hub, Hub::start(std::move(listener), identity_of(options)));
  return std::shared_ptr<SocketMesh>(
      new SocketMesh(data, options, std::move(addresses), std::move(hub)));
}

SocketMesh::SocketMesh(Data data, const Options& options, std::vector<SocketAddress> addresses,
                       std::unique_ptr<Hub> hub)
    : data_(data),
      identity_(identity_of(options)),
      addresses_(std::move(addresses)),
      endpoints_(options.endpoints),
      hub_(std::move(hub)) {}

Hello SocketMesh::hello_of(const GroupIdentity& identity, ConnectionKind kind) const {
  Hello hello;
  hello.version = identity_.version();
  hello.channel = kind;
  hello.job = identity_.job;
  hello.generation = identity_.generation;
  hello.group = identity.id;
  hello.rank = identity_.rank;
  hello.world_size = identity_.world_size;
  hello.ring = identity_.ring;
  hello.build = identity_.build;
  // The nonce only tells answers apart; if the system has no randomness, it is zero.
  (void)!::getrandom(&hello.nonce, sizeof(hello.nonce), GRND_NONBLOCK);
  return hello;
}

Status SocketMesh::dial_higher(const GroupIdentity& identity, Deadline deadline, Links& links) {
  std::vector<Dial> dials;
  std::vector<UniqueFd*> places;
  for (int member = 0; member < identity.size(); ++member) {
    if (identity.rank_of(member) <= identity.own_rank()) continue;
    for (const ConnectionKind kind : {ConnectionKind::kControl, ConnectionKind::kData}) {
      if (kind == ConnectionKind::kData && data_ == Data::kMemory) continue;
      Dial dial;
      dial.rank = identity.rank_of(member);
      dial.address = addresses_[static_cast<size_t>(dial.rank)];
      dial.hello = hello_of(identity, kind);
      dial.hello.target = static_cast<uint32_t>(dial.rank);
      dials.push_back(std::move(dial));
      auto& of_kind = kind == ConnectionKind::kControl ? links.control : links.data;
      places.push_back(&of_kind[static_cast<size_t>(member)]);
    }
  }
  std::vector<int> lost;
  Status status = dial_all(dials, identity_.key, deadline, lost);
  for (size_t i = 0; i < dials.size(); ++i)
    *places[i] = std::move(dials[i].fd);
  return status;
}

Error SocketMesh::nobody_listens(const GroupIdentity& identity, LifeProbe& probe, int rank) const {
  // One that gave up goes as well as the one it gave up for, and cannot be told from it here: all
  // are named.
  std::vector<int> gone;
  for (const int other : identity.global_ranks) {
    if (other == rank || (other < identity.own_rank() && probe.gone(other))) gone.push_back(other);
  }
  const bool one = gone.size() == 1;
  return {ErrorCode::kPeerLost,
          "meeting the peers: " + describe_ranks(gone) + (one ? " is" : " are") +
              " lost: no process listens at the address of rank " + std::to_string(rank) + ", " +
              to_string(addresses_[static_cast<size_t>(rank)]) +
              ", any more (its process has ended or closed the port)" + hub_->state()->refusals()};
}

Status SocketMesh::await_lower(const GroupIdentity& identity, Deadline deadline, Links& links) {
  const auto begin = Clock::now();
  std::vector<ConnectionKind> kinds{ConnectionKind::kControl};
  if (data_ == Data::kSockets) kinds.push_back(ConnectionKind::kData);
  std::vector<int> missing;
  LifeProbe probe(addresses_);
  for (int member = 0; member < identity.size(); ++member) {
    const int rank = identity.rank_of(member);
    if (rank >= identity.own_rank()) continue;
    for (const ConnectionKind kind : kinds) {
      auto& of_kind = kind == ConnectionKind::kControl ? links.control : links.data;
      UniqueFd& place = of_kind[static_cast<size_t>(member)];
      do {
        place = hub_->state()->take(identity.id, rank, kind,
                                    std::min(deadline, Clock::now() + kLookEvery));
        if (place.valid()) break;
        TRAINYARD_TRY(check_connected(identity, links.control));
        // It may have connected and died since, or connected between the two looks.
        if (!probe.gone(rank)) continue;
        place = hub_->state()->take(identity.id, rank, kind, Clock::now());
        if (!place.valid()) return nobody_listens(identity, probe, rank);
      } while (!place.valid() && Clock::now() < deadline);
      if (!place.valid()) missing.push_back(rank);
    }
  }
  if (missing.empty()) return {};
  missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
  const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin);
  return Error{ErrorCode::kPeerLost,
               "meeting the peers: " + describe_ranks(missing) + " did not connect within " +
                   std::to_string(waited.count()) + " ms" + hub_->state()->refusals()};
}

Result<SocketMesh::Links> SocketMesh::link(const GroupIdentity& identity, Deadline deadline) {
  Links links;
  links.control.resize(static_cast<size_t>(identity.size()));
  links.data.resize(static_cast<size_t>(identity.size()));
  Status status = dial_higher(identity, deadline, links);
  if (status) status = await_lower(identity, deadline, links);
  if (status) return links;
  // Those who have connected and were not asked for yet, or are about to, wait to be told as well.
  const Deadline told = std::min(deadline, Clock::now() + kTellGrace);
  for (int member = 0; member < identity.size(); ++member) {
    UniqueFd& place = links.control[static_cast<size_t>(member)];
    if (place.valid() || identity.rank_of(member) >= identity.own_rank()) continue;
    place =
        hub_->state()->take(identity.id, identity.rank_of(member), ConnectionKind::kControl, told);
  }
  give_up(links.control, status.error());
  return std::move(status).error();
}

int SocketMesh::local_ranks(const GroupIdentity& identity) const {
  const std::string& own = endpoints_[identity_.rank].host_id;
  return static_cast<int>(std::count_if(
      identity.global_ranks.begin(), identity.global_ranks.end(),
      [&](int rank) { return endpoints_[static_cast<size_t>(rank)].host_id == own; }));
}

Result<std::shared_ptr<Transport>> SocketMesh::connect(const std::shared_ptr<Group>& group) {
  const GroupIdentity& identity = group->identity();
  const Deadline deadline = Clock::now() + identity.deadline;
  TRAINYARD_ASSIGN(Links links, link(identity, deadline));
  const auto spin = spin_for(local_ranks(identity));
  std::shared_ptr<Transport> transport;
  if (data_ == Data::kSockets) {
    TRAINYARD_ASSIGN(transport, TcpTransport::make(identity, std::move(links.data), spin));
  } else {
    auto segment = share_memory(identity, links.control, deadline);
    if (!segment) {
      give_up(links.control, segment.error());
      return std::move(segment).error();
    }
    transport = std::make_shared<MemoryTransport>(identity, *std::move(segment), spin);
  }
  group->attach(std::make_shared<HubControl>(hub_->state(), group, std::move(links.control)),
                transport);
  return transport;
}

}  // namespace trainyard::comm

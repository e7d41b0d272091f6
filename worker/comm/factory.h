#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "common/base/error.h"
#include "common/base/unique_fd.h"
#include "worker/comm/communicator.h"
#include "worker/comm/host/local_world.h"

namespace trainyard::comm {

/// How ranks reach each other.
enum class TransportKind : uint8_t {
  kAuto,   ///< kShm when all endpoints have one host_id, otherwise kTcp
  kLocal,  ///< threads of one process
  kShm,    ///< processes of one host, through shared memory
  kTcp,    ///< sockets
};

/// "auto", "local", "shm", "tcp".
std::string_view name_of(TransportKind kind);

/// A listening socket on a port the system chose, made before the rank table exists so that its
/// address can be part of it. Move-only; closed on destruction.
class Listener {
 public:
  /// No socket: what a communicator of one rank, or a local one, is given.
  Listener() = default;

  /// Listens on a numeric IPv4 or IPv6 address ("127.0.0.1", "::1", the address of the pod), one
  /// that peers can connect to. Errors: kInvalidConfig for what is no numeric address or a
  /// wildcard; kIo.
  static Result<Listener> bind(const std::string& host);

  /// "host:port", IPv6 hosts in brackets: what belongs in Endpoint::address. Empty without a
  /// socket.
  const std::string& address() const { return address_; }
  bool valid() const { return fd_.valid(); }
  int fd() const { return fd_.get(); }

 private:
  Listener(UniqueFd fd, std::string address) : fd_(std::move(fd)), address_(std::move(address)) {}
  UniqueFd fd_;
  std::string address_;
};

/// Meets the peers of `options.endpoints` and returns a communicator over all of them.
///
/// Collective: every rank of the table calls it with its own rank and with the listener whose
/// address stands in its endpoint. Blocks for at most `options.deadline`. `kLocal` is only possible
/// for one rank here (see make_local_communicator). A table of one rank needs no listener.
/// Errors: kInvalidConfig (rank outside the table, no listener, an address that is none); kPeerLost
/// (names the ranks that did not come, or died meanwhile; a process that is known dead at once);
/// kConflict (a peer is of another job, generation, world size, ring order or protocol version,
/// named); kIo.
Result<std::unique_ptr<Communicator>> make_communicator(TransportKind kind, const Options& options,
                                                        Listener listener);

/// The same among threads of one process that share `world`. Only rank, endpoints.size(),
/// generation, job_uid, ring_order and deadline of `options` are used.
Result<std::unique_ptr<Communicator>> make_local_communicator(const Options& options,
                                                              std::shared_ptr<LocalWorld> world);

/// How many bytes of messages from one member to another of a group of `size`, local or of shared
/// memory, leave before they are received: what the ring between them holds.
int64_t eager_bytes(int size);

}  // namespace trainyard::comm

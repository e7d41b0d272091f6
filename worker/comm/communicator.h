#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/dtype.h"
#include "common/base/error.h"
#include "worker/comm/operation.h"
#include "worker/trace/span.h"

namespace trainyard::comm {

/// A started operation. Destroying it without waiting is allowed; the operation goes on, and its
/// buffers must stay alive until the communicator has finished or aborted it.
class Work {
 public:
  virtual ~Work() = default;
  /// True once finished or failed. Never blocks.
  virtual bool done() const = 0;
  /// Blocks until finished. Errors: kPeerLost (names the rank awaited and for how long), kAborted,
  /// kDeadline, kInternal (signature mismatch: names both sides' operation, dtype and count).
  virtual Status wait() = 0;
  /// Asks to take a point-to-point operation back; returns at once. If nothing of it has been sent
  /// or received yet, it ends with kAborted and the communicator stays usable; otherwise, and for
  /// collectives, the request has no effect (abort() ends those). Thread-safe.
  virtual void cancel() = 0;
};
using WorkPtr = std::shared_ptr<Work>;

/// One non-blocking point-to-point transfer in a batch.
struct PointToPoint {
  enum class Kind : uint8_t { kSend, kReceive };
  Kind kind = Kind::kSend;
  int peer = 0;
  std::span<std::byte> data;  ///< only read for kSend
};

/// Whether a rank that waits in a group is taken to wait in its other groups, too, when somebody is
/// to blame: true of groups that one thread uses, one after another or at once.
enum class Waits : uint8_t { kTogether, kApart };

/// When a point-to-point operation gives up by itself.
struct PointToPointOptions {
  /// Nothing of it was sent or received for this long, which may be longer than Options::deadline:
  /// it ends with kDeadline, naming the ranks awaited, and the communicator stays usable. Once a
  /// byte has moved, and where none is given, Options::deadline holds.
  std::optional<std::chrono::milliseconds> patience;
};

/// What the ranks of a group do together within a step: in the memory of the host, or in that of
/// the device that they compute on. See Communicator for what every operation promises.
class StepCommunicator {
 public:
  virtual ~StepCommunicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// In place: on completion every rank holds the combination of all ranks' `data`.
  virtual WorkPtr all_reduce(std::span<std::byte> data, DType dtype, ReduceOp op) = 0;

  /// `data` holds sum(counts) elements; on completion elements
  /// [sum(counts[0..rank)), + counts[rank]) of `data` hold the combination, the rest is undefined.
  virtual WorkPtr reduce_scatter(std::span<std::byte> data, std::span<const int64_t> counts,
                                 DType dtype, ReduceOp op) = 0;

  /// `data` holds sum(counts) elements, this rank's part already in place; on completion all parts
  /// are there.
  virtual WorkPtr all_gather(std::span<std::byte> data, std::span<const int64_t> counts,
                             DType dtype) = 0;

  /// `send` and `receive` hold size() parts of as many elements each, and do not overlap: what is
  /// part r of `send` here arrives on rank r, as the part of this rank. Of at least two ranks.
  virtual WorkPtr all_to_all(std::span<const std::byte> send, std::span<std::byte> receive,
                             DType dtype) = 0;

  /// One message to, or from, one peer. Like every operation they run in the order of the calls:
  /// two ranks that both send first and then receive large messages wait for each other until the
  /// deadline; batch what has to overlap. Blocking: `->wait()`.
  virtual WorkPtr send(std::span<const std::byte> data, int peer,
                       const PointToPointOptions& options) = 0;
  virtual WorkPtr receive(std::span<std::byte> data, int peer,
                          const PointToPointOptions& options) = 0;
  WorkPtr send(std::span<const std::byte> data, int peer) { return send(data, peer, {}); }
  WorkPtr receive(std::span<std::byte> data, int peer) { return receive(data, peer, {}); }

  /// Fails every pending and later operation on this rank with `reason`; peers see kPeerLost or
  /// kAborted soon. `lost_ranks`: the global ranks whose loss is the reason, which peers learn,
  /// too. Idempotent; returns at once.
  virtual void abort(const Error& reason, std::span<const int> lost_ranks) = 0;
  void abort(const Error& reason) { abort(reason, {}); }

  /// From now on every operation adds a kCollective span to `track`: from its start on the
  /// execution stream to its end. Call before the first operation; `sink` is not owned and outlives
  /// this.
  virtual void observe(trace::SpanSink* sink, trace::Track track) = 0;

  /// Thread-safe; cheap enough for every step.
  virtual Counters counters() const = 0;

  /// After a kPeerLost: the global ranks held lost, ascending, as far as this rank knows (itself
  /// observed or reported by a peer); otherwise empty. Thread-safe.
  virtual std::vector<int> lost_ranks() const = 0;
};

/// Collectives and point-to-point on a group of ranks, in the memory of the host.
///
/// Asynchronous: every operation is enqueued on the communicator's own execution stream, runs in
/// the order of the calls, and reports through the Work it returns. All ranks of the group must
/// call the same operations in the same order; every message carries (generation, sequence, op,
/// dtype, count). The rank that sees a mismatch fails with kInternal naming the difference; the
/// others fail with kAborted naming that rank. A watchdog fails an operation that makes no progress
/// for `Options::deadline`. One-shot: after any error all later operations fail with that error;
/// build a new communicator in a new generation.
///
/// Thread-safe: operations may be issued from one thread at a time; abort() from any thread.
/// Reduction order: for integers and kMin/kMax/kLor the result does not depend on it. For floating
/// point kSum/kProd it is ascending by rank, the same bits on every rank, transport and ring order,
/// but for the sign and payload of a NaN.
///
/// A call whose arguments cannot be right (counts, root, peer) fails the group with kInvalidConfig.
class Communicator : public StepCommunicator {
 public:
  virtual int64_t generation() const = 0;

  /// On completion every rank holds `root`'s data.
  virtual WorkPtr broadcast(std::span<std::byte> data, int root) = 0;

  /// In place: on completion `root`'s data holds the combination of all ranks' `data`; what the
  /// other ranks' data holds is undefined.
  virtual WorkPtr reduce(std::span<std::byte> data, DType dtype, ReduceOp op, int root) = 0;

  /// `root`'s `send` holds sum(counts) elements, of which rank r receives counts[r], those after
  /// the first counts[0..r), into `receive`. `send` is read on `root` only; no overlap with
  /// `receive` but for the root's own part in its place.
  virtual WorkPtr scatter(std::span<const std::byte> send, std::span<std::byte> receive,
                          std::span<const int64_t> counts, DType dtype, int root) = 0;

  /// The inverse of scatter: every rank's `send` of counts[rank] elements arrives in its place in
  /// `root`'s `receive`, which is written on `root` only.
  virtual WorkPtr gather(std::span<const std::byte> send, std::span<std::byte> receive,
                         std::span<const int64_t> counts, DType dtype, int root) = 0;

  /// Elements [sum(send_counts[0..r)), + send_counts[r]) of `send` go to rank r; what rank r sends
  /// arrives at the place that receive_counts give it in the same way. send_counts[r] here must be
  /// receive_counts[this rank] there. `send` and `receive` do not overlap.
  virtual WorkPtr all_to_all(std::span<const std::byte> send, std::span<const int64_t> send_counts,
                             std::span<std::byte> receive, std::span<const int64_t> receive_counts,
                             DType dtype) = 0;
  WorkPtr all_to_all(std::span<const std::byte> send, std::span<std::byte> receive,
                     DType dtype) final;

  /// Completes on no rank before every rank has called it.
  virtual WorkPtr barrier() = 0;

  /// Point-to-point transfers that make progress together (no order deadlocks within a batch).
  virtual WorkPtr batch_point_to_point(std::vector<PointToPoint> transfers,
                                       const PointToPointOptions& options) = 0;
  WorkPtr batch_point_to_point(std::vector<PointToPoint> transfers) {
    return batch_point_to_point(std::move(transfers), PointToPointOptions{});
  }

  using StepCommunicator::receive;
  using StepCommunicator::send;
  WorkPtr send(std::span<const std::byte> data, int peer, const PointToPointOptions& options) final;
  WorkPtr receive(std::span<std::byte> data, int peer, const PointToPointOptions& options) final;

  /// A communicator over some ranks of this one (ascending); collective over the members only. It
  /// has an execution stream, sequence numbers and connections of its own, so that it may be used
  /// at the same time as this and other groups. Its ring keeps the order of this one's. `waits`:
  /// kTogether with this one's, whose connections then must outlive it.
  virtual Result<std::unique_ptr<Communicator>> sub_group(std::span<const int> ranks,
                                                          Waits waits) = 0;
  Result<std::unique_ptr<Communicator>> sub_group(std::span<const int> ranks) {
    return sub_group(ranks, Waits::kTogether);
  }
};

/// What a rank needs to meet its peers.
struct Endpoint {
  int rank = 0;
  std::string host_id;  ///< equal for ranks that can share memory
  std::string address;  ///< host:port
};

struct Options {
  int rank = 0;
  std::vector<Endpoint> endpoints;  ///< in rank order; endpoints.size() is the world size
  int64_t generation = 0;
  std::string job_uid;  ///< part of shared-memory names and of the handshake
  /// Secret of the generation, which peers prove to have before anything else is looked at; empty:
  /// whoever knows job, generation and ranks may connect.
  std::vector<std::byte> key;
  /// Build ID of the rank's program (own_build_id()): ranks of different builds do not meet. Empty:
  /// not known.
  std::string build;
  /// In what order the rings go round, the same on every rank. Ranks that are not in the world are
  /// left out, ranks that are not named follow ascending; empty: 0, 1, 2 ... Results do not depend
  /// on it; how many bytes each rank sends does where shares are uneven (formulas.h).
  std::vector<int> ring_order;
  /// No progress for this long fails the operation.
  std::chrono::milliseconds deadline{30'000};
};

}  // namespace trainyard::comm

#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/dtype.h"
#include "common/base/error.h"
#include "worker/trace/span.h"

namespace trainyard::comm {

/// How elements are combined. kLor is logical or (non-zero is true; results are 0 or 1).
enum class ReduceOp : uint8_t { kSum, kMin, kMax, kProd, kLor };

/// Bytes that crossed this communicator, payload only, since it was made. Shared memory counts the
/// logical payload that the same algorithm would put on a wire, so that transports compare.
struct Counters {
  int64_t bytes_sent = 0;
  int64_t bytes_received = 0;
  int64_t operations = 0;
};

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
};
using WorkPtr = std::shared_ptr<Work>;

/// One non-blocking point-to-point transfer in a batch.
struct PointToPoint {
  enum class Kind : uint8_t { kSend, kReceive };
  Kind kind = Kind::kSend;
  int peer = 0;
  std::span<std::byte> data;  ///< only read for kSend
};

/// Collectives and point-to-point on a group of ranks.
///
/// Asynchronous: every operation is enqueued on the communicator's own execution stream, runs in
/// the order of the calls, and reports through the Work it returns. All ranks of the group must
/// call the same operations in the same order; every message carries (generation, sequence, op,
/// dtype, count) and a mismatch fails both sides with kInternal naming the difference. A watchdog
/// fails an operation that makes no progress for `Options::deadline`. One-shot: after any error all
/// later operations fail with that error; build a new communicator in a new generation.
///
/// Thread-safe: operations may be issued from one thread at a time; abort() from any thread.
/// Reduction order: for integers and kMin/kMax/kLor the result does not depend on it. For floating
/// point kSum/kProd it is ascending by rank, the same bits on every rank and transport.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual int64_t generation() const = 0;

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

  /// On completion every rank holds `root`'s data.
  virtual WorkPtr broadcast(std::span<std::byte> data, int root) = 0;

  /// Completes on no rank before every rank has called it.
  virtual WorkPtr barrier() = 0;

  /// Point-to-point transfers that make progress together (no order deadlocks within a batch).
  virtual WorkPtr batch_point_to_point(std::vector<PointToPoint> transfers) = 0;

  /// A communicator over some ranks of this one (ascending global order given by `ranks`);
  /// collective over the members only. Each sub-group has an execution stream of its own.
  virtual Result<std::unique_ptr<Communicator>> sub_group(std::span<const int> ranks) = 0;

  /// Fails every pending and later operation on this rank with `reason`; peers see kPeerLost or
  /// kAborted soon. Idempotent; returns at once.
  virtual void abort(const Error& reason) = 0;

  /// From now on every operation adds a kCollective span to `track`: from its start on the
  /// execution stream to its end. Call before the first operation; `sink` is not owned and outlives
  /// this.
  virtual void observe(trace::SpanSink* sink, trace::Track track) = 0;

  virtual Counters counters() const = 0;

  /// After a kPeerLost: the global ranks held lost, ascending, as far as this rank knows (itself
  /// observed or reported by a peer); otherwise empty. Thread-safe.
  virtual std::vector<int> lost_ranks() const = 0;
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
  /// No progress for this long fails the operation.
  std::chrono::milliseconds deadline{30'000};
};

}  // namespace trainyard::comm

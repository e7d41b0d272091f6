#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/error.h"
#include "worker/comm/communicator.h"
#include "worker/comm/factory.h"

namespace trainyard::comm::testing {

/// The transports that ranks in one process can use: for shm and tcp each rank is a thread that
/// behaves like a process of its own.
inline constexpr TransportKind kTransports[] = {TransportKind::kLocal, TransportKind::kShm,
                                                TransportKind::kTcp};

/// Under ThreadSanitizer fewer worlds do: threads that meet in a way that they have met in before
/// find it no new race, and the values are the same on every build.
#if defined(__SANITIZE_THREAD__)
inline constexpr int kWorldSizes[] = {1, 2, 3, 5};
inline constexpr int kGroupedWorldSizes[] = {2, 5};
#else
inline constexpr int kWorldSizes[] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
inline constexpr int kGroupedWorldSizes[] = {2, 3, 5, 9};
#endif

/// A world of ranks about to meet. Everything a rank needs to make its communicator, changeable
/// before that.
struct World {
  TransportKind kind = TransportKind::kLocal;
  std::vector<Options> options;     ///< by rank
  std::vector<Listener> listeners;  ///< by rank
  std::shared_ptr<LocalWorld> local;

  int size() const { return static_cast<int>(options.size()); }
  /// Rank `rank` meets the others; blocks.
  Result<std::unique_ptr<Communicator>> connect(int rank);
};

/// `host` is where tcp and shm listen.
World make_world(TransportKind kind, int size,
                 std::chrono::milliseconds deadline = std::chrono::seconds(60),
                 const std::string& host = "127.0.0.1");

/// Runs `body` for every rank on a thread of its own and joins them all.
void for_each_rank(int size, const std::function<void(int rank)>& body);

/// Makes a world, connects every rank, runs `body` with its communicator. A rank that cannot
/// connect is a test failure.
void run_world(TransportKind kind, int size, const std::function<void(Communicator&)>& body,
               std::chrono::milliseconds deadline = std::chrono::seconds(60));

/// The bytes of a vector, to pass to a collective.
template <class T>
std::span<std::byte> bytes_of(std::vector<T>& values) {
  return std::as_writable_bytes(std::span(values));
}

/// "" or the error's message, to compare with.
inline std::string message_of(const Status& status) {
  return status ? std::string() : status.error().message;
}

}  // namespace trainyard::comm::testing

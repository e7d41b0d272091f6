#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>

#include "common/base/error.h"
#include "common/base/time.h"

namespace trainyard::kube {

/// Where one answer passes from the network's threads to the thread that waits for it: its head,
/// its bytes, its end. Bounded: the network is held back while much lies here. Thread-safe; one
/// network thread at a time, one waiting thread.
class Inlet {
 public:
  struct Head {
    int status = 0;
    std::optional<Duration> retry_after;
  };

  /// What is waited for, for messages: "GET /api/v1/pods of https://host:6443".
  explicit Inlet(std::string what);

  // For the network.

  void head(const Head& head);

  enum class Flow {
    kGoOn,
    kWait,    ///< `resume` will be called once, when more is wanted or nobody wants it any more
    kClosed,  ///< nobody wants it
  };
  /// Takes all of `bytes`. `resume` must not block.
  Flow push(std::string_view bytes, std::function<void()> resume);

  /// The answer is complete. After end() or fail() nothing else changes anything.
  void end();
  /// There will be no more, in disorder.
  void fail(Error error);

  // For the waiting thread. Errors of all: kAborted (stopped), kDeadline, what fail() said.

  Result<Head> await_head(MonoTime deadline, std::stop_token stop);
  /// All bytes. Errors also: kInvalidData beyond `bytes_max`.
  Result<std::string> await_body(int64_t bytes_max, MonoTime deadline, std::stop_token stop);
  /// One line without its end; nothing at the end of the answer. `idle`: how long nothing may come.
  /// Errors also: kInvalidData for a line beyond `bytes_max`, kUnavailable for an end within a
  /// line.
  Result<std::optional<std::string>> await_line(int64_t bytes_max, Duration idle,
                                                std::stop_token stop);

  /// Nobody waits any more: what comes is dropped, and the network is told.
  void close();
  /// Whether end() was called: the connection can be used again.
  bool ended() const;

 private:
  /// More than this is not held; a watch's consumer is then behind by as much.
  static constexpr size_t kHeldBytesMax = 1 << 20;

  template <class Ready>
  Status await_locked(std::unique_lock<std::mutex>& lock, MonoTime deadline,
                      const std::stop_token& stop, std::string_view awaited, Ready ready);
  /// Takes the producer's resume, where it may go on; to be called without the lock.
  std::function<void()> take_resume_locked();
  std::optional<std::string> take_line_locked();
  Error end_within_line_locked() const;

  const std::string what_;
  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  std::optional<Head> head_;
  std::string held_;
  size_t begin_ = 0;    ///< of what is not taken yet, in held_
  size_t scanned_ = 0;  ///< no line end before it
  MonoTime last_push_{};
  bool ended_ = false;
  std::optional<Error> failure_;
  bool closed_ = false;
  bool wants_all_ = false;  ///< a whole body is awaited: its own limit counts
  std::function<void()> resume_;
};

}  // namespace trainyard::kube

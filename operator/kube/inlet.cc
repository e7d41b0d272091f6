#include "operator/kube/inlet.h"

#include <algorithm>
#include <utility>

namespace trainyard::kube {
namespace {

/// Waits end by themselves, so they follow the machine's clock.
MonoTime now() { return std::chrono::time_point_cast<Duration>(std::chrono::steady_clock::now()); }

std::string seconds_text(Duration duration) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
  return std::to_string(ms / 1000) + "." + std::to_string(ms % 1000 / 100) + " s";
}

}  // namespace

Inlet::Inlet(std::string what) : what_(std::move(what)), last_push_(now()) {}

void Inlet::head(const Head& head) {
  const std::lock_guard lock(mutex_);
  if (head_ || ended_ || failure_) return;
  head_ = head;
  last_push_ = now();
  changed_.notify_all();
}

Inlet::Flow Inlet::push(std::string_view bytes, std::function<void()> resume) {
  const std::lock_guard lock(mutex_);
  if (closed_ || ended_ || failure_) return Flow::kClosed;
  held_.append(bytes);
  last_push_ = now();
  changed_.notify_all();
  if (wants_all_ || held_.size() - begin_ <= kHeldBytesMax) return Flow::kGoOn;
  resume_ = std::move(resume);
  return Flow::kWait;
}

void Inlet::end() {
  const std::lock_guard lock(mutex_);
  if (!failure_) ended_ = true;
  changed_.notify_all();
}

void Inlet::fail(Error error) {
  const std::lock_guard lock(mutex_);
  if (!ended_ && !failure_) failure_ = std::move(error);
  changed_.notify_all();
}

void Inlet::close() {
  std::function<void()> resume;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    resume = std::exchange(resume_, nullptr);
  }
  if (resume) resume();
}

bool Inlet::ended() const {
  const std::lock_guard lock(mutex_);
  return ended_;
}

template <class Ready>
Status Inlet::await_locked(std::unique_lock<std::mutex>& lock, MonoTime deadline,
                           const std::stop_token& stop, std::string_view awaited, Ready ready) {
  const MonoTime start = now();
  if (changed_.wait_until(lock, stop, deadline, ready)) return {};
  if (stop.stop_requested()) {
    return Error{ErrorCode::kAborted,
                 what_ + ": asked to stop while waiting for " + std::string(awaited)};
  }
  return Error{ErrorCode::kDeadline, what_ + ": " + std::string(awaited) + " did not come within " +
                                         seconds_text(now() - start)};
}

std::function<void()> Inlet::take_resume_locked() {
  const bool room = wants_all_ || held_.size() - begin_ <= kHeldBytesMax / 2;
  return room ? std::exchange(resume_, nullptr) : nullptr;
}

Result<Inlet::Head> Inlet::await_head(MonoTime deadline, std::stop_token stop) {
  std::unique_lock lock(mutex_);
  TRAINYARD_TRY(
      await_locked(lock, deadline, stop, "an answer", [&] { return head_ || failure_ || ended_; }));
  if (head_) return *head_;
  if (failure_) return *failure_;
  return Error{ErrorCode::kUnavailable, what_ + ": the answer ended before its head"};
}

Result<std::string> Inlet::await_body(int64_t bytes_max, MonoTime deadline, std::stop_token stop) {
  const auto limit = static_cast<size_t>(bytes_max);
  std::unique_lock lock(mutex_);
  wants_all_ = true;
  if (const auto resume = take_resume_locked()) {
    lock.unlock();
    resume();
    lock.lock();
  }
  TRAINYARD_TRY(await_locked(lock, deadline, stop, "the end of the answer",
                             [&] { return ended_ || failure_ || held_.size() > limit; }));
  if (held_.size() > limit) {
    return Error{ErrorCode::kInvalidData, what_ + ": an answer of more than " +
                                              std::to_string(bytes_max) +
                                              " bytes, more than is read"};
  }
  if (failure_) return *failure_;
  return std::move(held_);
}

std::optional<std::string> Inlet::take_line_locked() {
  const size_t end = held_.find('\n', scanned_);
  if (end == std::string::npos) {
    scanned_ = held_.size();
    return std::nullopt;
  }
  std::string line = held_.substr(begin_, end - begin_);
  begin_ = end + 1;
  scanned_ = begin_;
  if (begin_ > held_.size() / 2) {  // moves each byte once, on average
    held_.erase(0, begin_);
    begin_ = 0;
    scanned_ = 0;
  }
  return line;
}

Error Inlet::end_within_line_locked() const {
  return {ErrorCode::kUnavailable, what_ + ": the stream ended within a line, after " +
                                       std::to_string(held_.size() - begin_) + " bytes of it"};
}

Result<std::optional<std::string>> Inlet::await_line(int64_t bytes_max, Duration idle,
                                                     std::stop_token stop) {
  const auto limit = static_cast<size_t>(bytes_max);
  const Error too_long{
      ErrorCode::kInvalidData,
      what_ + ": a line of more than " + std::to_string(bytes_max) + " bytes, more than is read"};
  std::unique_lock lock(mutex_);
  last_push_ = std::max(last_push_, now());  // our own absence is not the server's silence
  while (true) {
    if (stop.stop_requested()) {
      return Error{ErrorCode::kAborted, what_ + ": asked to stop while waiting for a line"};
    }
    std::optional<std::string> line = take_line_locked();
    if (const auto resume = take_resume_locked()) {
      lock.unlock();
      resume();
      lock.lock();
    }
    if (line && line->size() > limit) return too_long;
    if (line) return line;
    if (held_.size() - begin_ > limit) return too_long;
    if (failure_) return *failure_;
    if (ended_) {
      if (held_.size() > begin_) return end_within_line_locked();
      return std::optional<std::string>();
    }
    // A line longer than what is held at most: the network must go on, and may be held back again
    // before this thread has the lock.
    const size_t before = held_.size();
    if (auto resume = std::exchange(resume_, nullptr)) {
      lock.unlock();
      resume();
      lock.lock();
    }
    TRAINYARD_TRY(await_locked(lock, last_push_ + idle, stop, "more of the stream",
                               [&] { return held_.size() != before || ended_ || failure_; }));
  }
}

}  // namespace trainyard::kube

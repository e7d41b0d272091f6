#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "common/base/error.h"
#include "worker/checkpoint/file_system.h"

namespace trainyard::checkpoint {

/// Runs one file job after another on a thread of its own, and watches its calls: a disk that never
/// answers takes nobody else with it. A call that hangs cannot be taken back, only left behind;
/// whatever it still does when the disk comes back is the last thing its job does.
///
/// Used by one thread at a time.
class DiskThread {
 public:
  /// A job is handed the file system it must use. It may outlive the DiskThread (when it hangs), so
  /// it owns all it touches.
  using Job = std::function<void(FileSystem&)>;

  /// `files` lives as long as the last job. `hang_limit`: see hung().
  DiskThread(std::shared_ptr<FileSystem> files, std::chrono::milliseconds hang_limit);
  /// Waits for a job in progress while it moves; one that hangs is abandoned with its thread.
  ~DiskThread();
  DiskThread(const DiskThread&) = delete;
  DiskThread& operator=(const DiskThread&) = delete;

  /// Starts a job. Only while idle().
  void start(Job job);
  /// Waits until the job has ended. False after `timeout`.
  bool wait(std::chrono::milliseconds timeout);
  bool idle() const;
  /// Whether a job is in progress that has been abandoned, or none of whose calls has begun or
  /// ended during waits of `hang_limit` together.
  bool hung() const;
  /// "fsync /path/x for 61 s"; what the job does now, for messages.
  std::string activity() const;
  /// Every later call of the job in progress fails with kAborted.
  void abandon();

  /// Name of the thread, as `top -H` and debuggers show it.
  static constexpr char kThreadName[] = "ckpt-disk";

 private:
  struct Shared;
  class Watched;
  class WatchedOutput;
  class WatchedInput;
  static void run(const std::shared_ptr<Shared>& shared);
  std::shared_ptr<Shared> shared_;
};

}  // namespace trainyard::checkpoint

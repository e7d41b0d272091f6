#include "worker/checkpoint/disk_thread.h"

#include <condition_variable>
#include <mutex>
#include <pthread.h>
#include <string_view>
#include <thread>
#include <utility>

#include "common/base/check.h"

namespace trainyard::checkpoint {
namespace {

using SteadyClock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kSlice{100};

}  // namespace

/// Owned by the thread and its owner together: the thread may have to be left behind.
struct DiskThread::Shared {
  Shared(std::shared_ptr<FileSystem> inner_files, std::chrono::milliseconds limit)
      : files(std::move(inner_files)), hang_limit(limit) {}

  /// Before a call: its name for messages, and whether it may still be made.
  Status enter(std::string_view name, const std::filesystem::path& path) {
    const std::lock_guard lock(mutex);
    if (abandoned) {
      return Error{ErrorCode::kAborted,
                   std::string(name) + " " + path.string() + ": this save was abandoned"};
    }
    call = name;
    call_path = path;
    move();
    return {};
  }
  void leave() {
    const std::lock_guard lock(mutex);
    call = {};
    move();
  }
  void move() {
    ++moves;
    moved = SteadyClock::now();
  }
  bool hangs() const { return busy && (abandoned || quiet >= hang_limit); }
  /// Counted by the waits and not by the clock: when the whole process was stopped for an hour, its
  /// disk has not been silent for an hour.
  bool wait(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds timeout) {
    if (changed.wait_for(lock, timeout, [this] { return !busy; })) return true;
    quiet = moves == seen ? quiet + timeout : std::chrono::milliseconds(0);
    seen = moves;
    return false;
  }

  const std::shared_ptr<FileSystem> files;
  const std::chrono::milliseconds hang_limit;
  std::mutex mutex;
  std::condition_variable changed;
  Job job;
  bool busy = false;
  bool ending = false;
  bool abandoned = false;
  std::string_view call;  // a literal; empty between calls
  std::filesystem::path call_path;
  SteadyClock::time_point moved;  // when a call last began or ended
  int64_t moves = 0;              // calls begun and ended
  int64_t seen = 0;               // moves at the end of the last wait
  std::chrono::milliseconds quiet{0};
  std::thread thread;  // the owner's only
};

namespace {

/// Marks the end of a call on every way out.
template <class Shared>
class Leaving {
 public:
  explicit Leaving(Shared& shared) : shared_(shared) {}
  ~Leaving() { shared_.leave(); }
  Leaving(const Leaving&) = delete;
  Leaving& operator=(const Leaving&) = delete;

 private:
  Shared& shared_;
};

}  // namespace

class DiskThread::WatchedOutput final : public OutputFile {
 public:
  WatchedOutput(Shared& shared, std::unique_ptr<OutputFile> inner, std::filesystem::path path)
      : shared_(shared), inner_(std::move(inner)), path_(std::move(path)) {}
  Status write(std::span<const std::byte> data) override {
    TRAINYARD_TRY(shared_.enter("write", path_));
    const Leaving leaving(shared_);
    return inner_->write(data);
  }
  Status sync() override {
    TRAINYARD_TRY(shared_.enter("sync", path_));
    const Leaving leaving(shared_);
    return inner_->sync();
  }

 private:
  Shared& shared_;
  std::unique_ptr<OutputFile> inner_;
  std::filesystem::path path_;
};

class DiskThread::WatchedInput final : public InputFile {
 public:
  WatchedInput(Shared& shared, std::unique_ptr<InputFile> inner, std::filesystem::path path)
      : shared_(shared), inner_(std::move(inner)), path_(std::move(path)) {}
  int64_t size() const override { return inner_->size(); }
  Status read_at(int64_t offset, std::span<std::byte> out) override {
    TRAINYARD_TRY(shared_.enter("read", path_));
    const Leaving leaving(shared_);
    return inner_->read_at(offset, out);
  }

 private:
  Shared& shared_;
  std::unique_ptr<InputFile> inner_;
  std::filesystem::path path_;
};

/// What a job is handed: the file system, every call of it watched. Lives on the thread's stack.
class DiskThread::Watched final : public FileSystem {
 public:
  explicit Watched(Shared& shared) : shared_(shared) {}

  Result<std::unique_ptr<OutputFile>> create(const std::filesystem::path& path) override {
    TRAINYARD_ASSIGN(auto file, call("create", path, [&] { return inner().create(path); }));
    return std::unique_ptr<OutputFile>(
        std::make_unique<WatchedOutput>(shared_, std::move(file), path));
  }
  Result<std::unique_ptr<InputFile>> open(const std::filesystem::path& path) override {
    TRAINYARD_ASSIGN(auto file, call("open", path, [&] { return inner().open(path); }));
    return std::unique_ptr<InputFile>(
        std::make_unique<WatchedInput>(shared_, std::move(file), path));
  }
  Status make_directory(const std::filesystem::path& path) override {
    return call("mkdir", path, [&] { return inner().make_directory(path); });
  }
  Status rename(const std::filesystem::path& from, const std::filesystem::path& to) override {
    return call("rename", from, [&] { return inner().rename(from, to); });
  }
  Status link(const std::filesystem::path& from, const std::filesystem::path& to) override {
    return call("link", from, [&] { return inner().link(from, to); });
  }
  Status symlink(const std::filesystem::path& target, const std::filesystem::path& path) override {
    return call("symlink", path, [&] { return inner().symlink(target, path); });
  }
  Result<std::string> read_link(const std::filesystem::path& path) override {
    return call("readlink", path, [&] { return inner().read_link(path); });
  }
  Result<bool> is_directory(const std::filesystem::path& path) override {
    return call("lstat", path, [&] { return inner().is_directory(path); });
  }
  Status remove_file(const std::filesystem::path& path) override {
    return call("unlink", path, [&] { return inner().remove_file(path); });
  }
  Status remove_directory(const std::filesystem::path& path) override {
    return call("rmdir", path, [&] { return inner().remove_directory(path); });
  }
  Status sync_directory(const std::filesystem::path& path) override {
    return call("sync", path, [&] { return inner().sync_directory(path); });
  }
  Result<std::vector<std::string>> list(const std::filesystem::path& path) override {
    return call("list", path, [&] { return inner().list(path); });
  }

 private:
  template <class Operation>
  std::invoke_result_t<Operation> call(std::string_view name, const std::filesystem::path& path,
                                       const Operation& operation) {
    TRAINYARD_TRY(shared_.enter(name, path));
    const Leaving leaving(shared_);
    return operation();
  }
  FileSystem& inner() { return *shared_.files; }

  Shared& shared_;
};

DiskThread::DiskThread(std::shared_ptr<FileSystem> files, std::chrono::milliseconds hang_limit)
    : shared_(std::make_shared<Shared>(std::move(files), hang_limit)) {
  shared_->thread = std::thread([shared = shared_] { run(shared); });
  (void)::pthread_setname_np(shared_->thread.native_handle(), kThreadName);
}

DiskThread::~DiskThread() {
  std::unique_lock lock(shared_->mutex);
  shared_->ending = true;
  shared_->changed.notify_all();
  // One that is abandoned but moves ends with its next call.
  while (shared_->busy && shared_->quiet < shared_->hang_limit)
    shared_->wait(lock, kSlice);
  const bool left_behind = shared_->busy;
  shared_->abandoned = left_behind;
  lock.unlock();
  if (left_behind) {
    shared_->thread.detach();  // in a call that never returns; nothing could join it
  } else {
    shared_->thread.join();
  }
}

void DiskThread::run(const std::shared_ptr<Shared>& shared) {
  std::unique_lock lock(shared->mutex);
  while (true) {
    shared->changed.wait(lock, [&] { return shared->busy || shared->ending; });
    if (!shared->busy) return;
    {
      const Job job = std::exchange(shared->job, nullptr);
      lock.unlock();
      Watched files(*shared);
      job(files);
    }  // what the job owns is freed before anybody hears of its end
    lock.lock();
    shared->busy = false;
    shared->changed.notify_all();
  }
}

void DiskThread::start(Job job) {
  const std::lock_guard lock(shared_->mutex);
  TRAINYARD_CHECK(!shared_->busy);
  shared_->job = std::move(job);
  shared_->busy = true;
  shared_->abandoned = false;
  shared_->call = {};
  shared_->quiet = std::chrono::milliseconds(0);
  shared_->move();
  shared_->seen = shared_->moves;
  shared_->changed.notify_all();
}

bool DiskThread::wait(std::chrono::milliseconds timeout) {
  std::unique_lock lock(shared_->mutex);
  return shared_->wait(lock, timeout);
}

bool DiskThread::idle() const {
  const std::lock_guard lock(shared_->mutex);
  return !shared_->busy;
}

bool DiskThread::hung() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->hangs();
}

std::string DiskThread::activity() const {
  const std::lock_guard lock(shared_->mutex);
  if (!shared_->busy) return "nothing";
  const auto for_s =
      std::chrono::duration_cast<std::chrono::seconds>(SteadyClock::now() - shared_->moved);
  const std::string what = shared_->call.empty()
                               ? "computing"
                               : std::string(shared_->call) + " " + shared_->call_path.string();
  return what + " for " + std::to_string(for_s.count()) + " s";
}

void DiskThread::abandon() {
  const std::lock_guard lock(shared_->mutex);
  shared_->abandoned = shared_->busy;
}

}  // namespace trainyard::checkpoint
